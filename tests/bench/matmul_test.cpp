#include "bench/matmul.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/config.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

const MatmulBenchOptions kFew{1, 3};

// Integers below 2^53: exact.
TEST(MatmulShape, CountsAMultiplicationAndAnAdditionEach) {
  EXPECT_EQ((MatmulShape{3, 5, 7}.flops()), 210.0);
}

TEST(BenchMatmul, RatesFollowFromTheMedian) {
  for (const Precision precision :
       {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp8}) {
    const MatmulRow row = bench_matmul({48, 32, 17}, precision, kFew);
    EXPECT_EQ(row.out_of_memory, "");
    EXPECT_GT(row.time.median, 0.0);
    EXPECT_DOUBLE_EQ(row.flops_per_second(), 2.0 * 48 * 32 * 17 / (row.time.median / 1e3));
  }
  EXPECT_EQ(Context::current().options.precision, Precision::fp32);
}

TEST(BenchMatmul, TheDefaultSweepOfTheCpu) {
  const auto shapes = default_matmul_shapes();
  ASSERT_EQ(shapes.size(), 5u);
  EXPECT_EQ(shapes.front(), (MatmulShape{64, 64, 64}));
  EXPECT_EQ(shapes.back(), (MatmulShape{1024, 1024, 1024}));
  EXPECT_EQ(default_matmul_precisions(),
            (std::vector<Precision>{Precision::fp32, Precision::bf16}));
}

// A result of 2^49 bytes, more than the address space has.
TEST(BenchMatmul, WhatDoesNotFitIsARow) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 512 TiB";
  const Allocator& allocator = *Context::current().allocator(kCpu);
  const int64_t before = allocator.stats().allocated;
  const int64_t n = int64_t{1} << 24;  // operands of 32 MiB
  const MatmulRow row = bench_matmul({n, n, 1}, Precision::bf16, kFew);
  EXPECT_NE(row.out_of_memory, "");
  EXPECT_EQ(row.flops_per_second(), 0.0);
  EXPECT_EQ(allocator.stats().allocated, before);
  Table text(TableFormat::text, kTextWidth, "quern-test");
  const std::string line = text.add(table_row(row, false));
  EXPECT_NE(line.find("16777216      1  out of memory\n"), std::string::npos) << line;
}

TEST(MatmulTable, GivesGflopsOnTheCpuAndTflopsOnAGpu) {
  MatmulRow row;
  row.shape = {1000, 500, 1000};
  row.precision = Precision::bf16;
  row.time.median = 0.5;  // 10^9 operations: 2 TFLOP/s
  for (const bool on_gpu : {false, true}) {
    Table json(TableFormat::json, kTextWidth, "quern-test");
    const auto parsed = nlohmann::json::parse(json.add(table_row(row, on_gpu)));
    EXPECT_DOUBLE_EQ(parsed.at(on_gpu ? "tflops" : "gflops"), on_gpu ? 2.0 : 2000.0);
    EXPECT_EQ(parsed.at("precision"), "bf16");
    EXPECT_EQ(parsed.at("N"), 500);
    Table table(TableFormat::text, kTextWidth, "quern-test");
    const std::string text = table.add(table_row(row, on_gpu));
    EXPECT_NE(text.find(on_gpu ? "TFLOP/s" : "GFLOP/s"), std::string::npos);
  }
}

}  // namespace
}  // namespace quern
