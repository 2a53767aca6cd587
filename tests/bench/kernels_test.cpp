#include "bench/kernels.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "config/config.h"
#include "support/sanitized.h"
#include "tensor/context.h"

namespace quern {
namespace {

KernelBenchOptions tiny_options() {
  KernelBenchOptions options;
  options.rows = 4;
  options.warmup = 1;
  options.steps = 2;
  return options;
}

nlohmann::json json_of(const KernelRow& row) {
  return nlohmann::json::parse(
      Table(TableFormat::json, kTextWidth, "quern-0.1.0").add(table_row(row)));
}

TEST(BenchKernels, EveryKernelFusedAndNaive) {
  size_t told = 0;
  const auto rows = bench_kernels(tiny_options(), [&](const KernelRow&) { ++told; });
  EXPECT_EQ(told, rows.size());
  ASSERT_FALSE(rows.empty());
  EXPECT_EQ(rows[0].kernel, "copy");
  // The second and third are the other ceilings: products of FP32 and BF16 matrices.
  EXPECT_EQ(rows[1].kernel + rows[2].kernel, "matmulmatmul");
  EXPECT_EQ(rows[2].dtype, DType::bf16);
  const double copy = rows[0].tb_per_second();
  EXPECT_DOUBLE_EQ(rows[0].share(), 1.0);
  std::map<std::string, std::set<std::string>> variants;
  for (const KernelRow& row : rows) {
    EXPECT_EQ(row.out_of_memory, "") << row.kernel;
    EXPECT_GT(row.bytes, 0) << row.kernel;
    EXPECT_GT(row.time.median, 0.0) << row.kernel;
    EXPECT_DOUBLE_EQ(row.tb_per_second(), static_cast<double>(row.bytes) / row.time.median / 1e9);
    EXPECT_DOUBLE_EQ(row.share(), row.tb_per_second() / copy);
    if (row.account) {
      const double peak = rows[row.dtype == DType::f32 ? 1 : 2].tflops();
      EXPECT_DOUBLE_EQ(row.matmul_tflops, peak) << row.kernel;
      const double least = std::max(static_cast<double>(row.account->bytes) / copy,
                                    static_cast<double>(row.account->flops) / peak);
      EXPECT_NEAR(row.roofline_share(), least / 1e9 / row.time.median, 1e-9) << row.kernel;
    }
    variants[row.kernel].insert(row.variant);
  }
  for (const std::string& name : kernel_names()) {
    std::set<std::string> expected{"naive", "fused"};
    if (name == "softmax") expected.insert("online");
    EXPECT_EQ(variants[name], expected) << name;
  }
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

// Bytes for one element of the main input: torch_kernels.py's counts, and by the same rule counts
// for the kernels that it lacks.
TEST(BenchKernels, BytesAreThoseThatMoveOnce) {
  const std::map<std::string, double> bf16{{"softmax", 4},
                                           {"dropout", 4},
                                           {"rmsnorm_fwd", 4},
                                           {"layernorm_fwd", 4},
                                           {"rmsnorm_bwd", 6},
                                           {"layernorm_bwd", 6},
                                           {"add_rmsnorm_fwd", 8},
                                           {"add_layernorm_fwd", 8},
                                           {"swiglu_fwd", 3},  // of gate and up, two elements
                                           {"swiglu_bwd", 5},
                                           {"quantize", 4},
                                           {"quantize_swiglu_bwd", 5},
                                           {"rope_fwd", 4},
                                           {"cross_entropy_fwd_bwd", 6},
                                           {"cross_entropy_in_place", 4},
                                           {"adamw", 28},
                                           {"adamw_bf16_moments", 20}};
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

// dy in BF16; the FP32 rows of the tokens (the first four draws differ) are read and written.
TEST(BenchKernels, EmbeddingBackwardCountsTheTouchedRows) {
  KernelBenchOptions options = tiny_options();
  options.kernels = {"embedding_bwd"};
  options.variants = {"fused"};
  const auto rows = bench_kernels(options);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[2].shape, (std::vector<int64_t>{4, 2560}));
  EXPECT_EQ(rows[2].bytes, 4 * 2560 * (2 + 2 * 4));
}

TEST(BenchKernels, RunsWhatItIsAskedFor) {
  KernelBenchOptions options = tiny_options();
  options.kernels = {"gelu", "rope_fwd"};
  options.variants = {"naive"};
  const auto rows = bench_kernels(options);
  ASSERT_EQ(rows.size(), 5u);  // after a copy and two products
  EXPECT_EQ(rows[3].kernel, "gelu");
  EXPECT_EQ(rows[4].kernel, "rope_fwd");
  EXPECT_EQ(rows[4].variant, "naive");
}

// 2^40 rows: a copy of 2^55 bytes, and inputs of the same size.
TEST(BenchKernels, WhatDoesNotFitIsARowAndNotAnEnd) {
  if (testing_support::kSanitized)
    GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 32 PiB";
  KernelBenchOptions options = tiny_options();
  options.rows = int64_t{1} << 40;
  options.kernels = {"gelu"};
  const auto rows = bench_kernels(options);
  ASSERT_EQ(rows.size(), 4u);
  for (const KernelRow& row : rows) {
    if (row.kernel == "matmul") continue;  // has a size of its own
    EXPECT_NE(row.out_of_memory, "");
    EXPECT_EQ(row.tb_per_second(), 0.0);
    EXPECT_EQ(row.share(), 0.0);
    EXPECT_EQ(json_of(row).at("error"), "OOM");
    Table text(TableFormat::text, kTextWidth, "quern");
    EXPECT_NE(text.add(table_row(row)).find("out of memory"), std::string::npos);
  }
}

std::set<std::string> keys_of(const KernelRow& row) {
  const auto json = json_of(row);
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
  const auto json = json_of(row);
  EXPECT_EQ(json.at("dtype"), "bfloat16");
  EXPECT_EQ(json.at("shape"), (std::vector<int64_t>{16384, 4096}));
  EXPECT_DOUBLE_EQ(json.at("tb_s"), 4.0);
  EXPECT_DOUBLE_EQ(json.at("share"), 0.8);
  row.account = account_of("softmax", "fused", row.shape, row.dtype);
  row.matmul_tflops = 500.0;
  const auto accounted = json_of(row);
  for (const char* key :
       {"reads", "writes", "moved_bytes", "flops", "intensity", "tflops", "roofline"}) {
    EXPECT_TRUE(accounted.contains(key)) << key;
  }
  // 4 bytes and 5 FLOP an element: 268 MB at 5 TB/s take 0.0537 ms of the 0.25.
  EXPECT_DOUBLE_EQ(accounted.at("intensity"), 1.25);
  EXPECT_NEAR(accounted.at("roofline"), 0.2147, 1e-4);
  row.account.reset();
  row.kernel = "adamw";
  row.shape = {100};
  EXPECT_TRUE(keys_of(row).contains("params"));
  EXPECT_FALSE(keys_of(row).contains("shape"));
}

}  // namespace
}  // namespace quern
