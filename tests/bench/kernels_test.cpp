#include "bench/kernels.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "support/files.h"
#include "tensor/context.h"
#include "train/config.h"

namespace quern {
namespace {

using namespace testing_support;

KernelBenchOptions tiny_options() {
  KernelBenchOptions options;
  options.rows = 4;
  options.warmup = 1;
  options.steps = 2;
  return options;
}

TEST(BenchKernels, EveryKernelFusedAndNaive) {
  size_t told = 0;
  const auto rows = bench_kernels(tiny_options(), [&](const KernelRow&) { ++told; });
  EXPECT_EQ(told, rows.size());
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].kernel, "copy");
  const double copy = rows[0].tb_per_second();
  EXPECT_DOUBLE_EQ(rows[0].share(), 1.0);
  std::map<std::string, std::set<std::string>> variants;
  for (const KernelRow& row : rows) {
    EXPECT_EQ(row.out_of_memory, "") << row.kernel;
    EXPECT_GT(row.bytes, 0) << row.kernel;
    EXPECT_GT(row.time.median, 0.0) << row.kernel;
    EXPECT_DOUBLE_EQ(row.tb_per_second(), static_cast<double>(row.bytes) / row.time.median / 1e9);
    EXPECT_DOUBLE_EQ(row.share(), row.tb_per_second() / copy);
    variants[row.kernel].insert(row.variant);
  }
  for (const std::string& name : kernel_names()) {
    EXPECT_EQ(variants[name], (std::set<std::string>{"naive", "fused"})) << name;
  }
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

// Bytes of one element of the main input: torch_kernels.py's counts, and by the same rule those of
// the kernels that it does not have.
TEST(BenchKernels, BytesAreThoseThatMoveOnce) {
  const std::map<std::string, double> bf16{{"softmax", 4},
                                           {"rmsnorm_fwd", 4},
                                           {"rmsnorm_bwd", 6},
                                           {"add_rmsnorm_fwd", 8},
                                           {"swiglu_fwd", 3},  // of gate and up, two elements
                                           {"swiglu_bwd", 5},
                                           {"rope_fwd", 4},
                                           {"cross_entropy_fwd_bwd", 6},
                                           {"cross_entropy_in_place", 4},
                                           {"adamw", 30}};
  const std::map<std::string, double> f32{
      {"softmax", 8}, {"gelu", 8}, {"adamw", 28}, {"global_norm", 4}};
  KernelBenchOptions options = tiny_options();
  options.variants = {"fused"};
  size_t checked = 0;
  for (const KernelRow& row : bench_kernels(options)) {
    const auto& expected = row.dtype == DType::f32 ? f32 : bf16;
    const auto found = expected.find(row.kernel);
    if (found == expected.end()) continue;
    const auto elements = static_cast<double>(product(row.shape));
    EXPECT_EQ(static_cast<double>(row.bytes), found->second * elements) << row.kernel;
    ++checked;
  }
  EXPECT_EQ(checked, bf16.size() + f32.size() + 2);  // softmax has two widths
}

// dy in BF16, and the FP32 rows of the tokens (the first four draws differ) read and written.
TEST(BenchKernels, EmbeddingBackwardCountsTheTouchedRows) {
  KernelBenchOptions options = tiny_options();
  options.kernels = {"embedding_bwd"};
  options.variants = {"fused"};
  const auto rows = bench_kernels(options);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].shape, (std::vector<int64_t>{4, 2560}));
  EXPECT_EQ(rows[1].bytes, 4 * 2560 * (2 + 2 * 4));
}

TEST(BenchKernels, RunsWhatItIsAskedFor) {
  KernelBenchOptions options = tiny_options();
  options.kernels = {"gelu", "rope_fwd"};
  options.variants = {"naive"};
  const auto rows = bench_kernels(options);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].kernel, "gelu");
  EXPECT_EQ(rows[2].kernel, "rope_fwd");
  EXPECT_EQ(rows[2].variant, "naive");
}

// 2^40 rows: a copy of 2^55 bytes, and inputs of as many.
TEST(BenchKernels, WhatDoesNotFitIsARowAndNotAnEnd) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 32 PiB";
#endif
  KernelBenchOptions options = tiny_options();
  options.rows = int64_t{1} << 40;
  options.kernels = {"gelu"};
  const auto rows = bench_kernels(options);
  ASSERT_EQ(rows.size(), 3u);
  for (const KernelRow& row : rows) {
    EXPECT_NE(row.out_of_memory, "");
    EXPECT_EQ(row.tb_per_second(), 0.0);
    EXPECT_EQ(row.share(), 0.0);
    EXPECT_EQ(nlohmann::json::parse(kernel_json(row, "quern-test")).at("error"), "OOM");
    EXPECT_NE(kernel_table_line(row).find("out of memory"), std::string::npos);
  }
}

TEST(BenchKernels, RefusesUnusableOptions) {
  KernelBenchOptions options = tiny_options();
  options.kernels = {"sofmax"};
  expect_error([&] { bench_kernels(options); }, {"'sofmax'", "did you mean softmax?"});
  options = tiny_options();
  options.variants = {"fast"};
  EXPECT_THROW(bench_kernels(options), UsageError);
  options = tiny_options();
  options.steps = 0;
  EXPECT_THROW(bench_kernels(options), UsageError);
}

std::set<std::string> keys_of(const KernelRow& row) {
  const auto json = nlohmann::json::parse(kernel_json(row, "quern-0.1.0"));
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  return keys;
}

TEST(KernelReport, JsonHasThePeersKeys) {
  KernelRow row;
  row.kernel = "softmax";
  row.variant = "fused";
  row.shape = {16384, 4096};
  row.dtype = DType::bf16;
  row.time.median = 0.25;
  row.bytes = 1'000'000'000;
  row.copy_tb_per_second = 5.0;
  EXPECT_EQ(keys_of(row), (std::set<std::string>{"peer", "kernel", "variant", "ms", "tb_s", "share",
                                                 "bytes", "shape", "dtype"}));
  const auto json = nlohmann::json::parse(kernel_json(row, "quern-0.1.0"));
  EXPECT_EQ(json.at("dtype"), "bfloat16");
  EXPECT_EQ(json.at("shape"), (std::vector<int64_t>{16384, 4096}));
  EXPECT_DOUBLE_EQ(json.at("tb_s"), 4.0);
  EXPECT_DOUBLE_EQ(json.at("share"), 0.8);
  row.kernel = "adamw";
  row.shape = {100};
  EXPECT_TRUE(keys_of(row).contains("params"));
  EXPECT_FALSE(keys_of(row).contains("shape"));
}

}  // namespace
}  // namespace quern
