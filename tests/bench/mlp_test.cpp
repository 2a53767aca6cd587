#include "bench/mlp.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "config/config.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

MlpBenchOptions tiny_options() {
  MlpBenchOptions options;
  options.base = {2, 8, 4, 3};
  options.scales = {2, 5};
  options.warmup = 1;
  options.trials = 2;
  return options;
}

// The lecture's shapes: dim 256, 4 layers, batch 256, 2 steps, each scaled by 2 to 5.
TEST(MlpCases, ScaleOneDimensionAtATime) {
  const auto lecture = mlp_cases({});
  ASSERT_EQ(lecture.size(), 1u + 4u * 4u);
  EXPECT_EQ(lecture[0].shape, (MlpShape{4, 256, 256, 2}));
  EXPECT_EQ(lecture[1].shape, (MlpShape{8, 256, 256, 2}));
  EXPECT_EQ(lecture[4].shape, (MlpShape{20, 256, 256, 2}));
  EXPECT_EQ(lecture[5].shape, (MlpShape{4, 512, 256, 2}));
  EXPECT_EQ(lecture[9].shape, (MlpShape{4, 256, 512, 2}));
  EXPECT_EQ(lecture[16].shape, (MlpShape{4, 256, 256, 10}));
  EXPECT_STREQ(name_of(lecture[16].scaled), "steps");
  EXPECT_EQ(lecture[16].scale, 5);

  MlpBenchOptions options = tiny_options();
  options.dimensions = {};
  EXPECT_EQ(mlp_cases(options).size(), 1u);
}

// A (B, C) by (C, C) layer has y, dx and dw; the first needs no dx.
TEST(MlpShape, CountsTheProducts) {
  EXPECT_EQ((MlpShape{1, 8, 4, 1}.flops()), 2.0 * 2 * 4 * 8 * 8);
  EXPECT_EQ((MlpShape{3, 8, 4, 2}.flops()), 2.0 * 8 * 2 * 4 * 8 * 8);
}

TEST(BenchMlp, TimesEveryCase) {
  const MlpBenchOptions options = tiny_options();
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    size_t told = 0;
    const auto rows = bench_mlp(options, precision, [&](const MlpRow&) { ++told; });
    ASSERT_EQ(rows.size(), 9u);
    EXPECT_EQ(told, rows.size());
    for (const MlpRow& row : rows) {
      EXPECT_EQ(row.out_of_memory, "");
      EXPECT_EQ(row.precision, precision);
      EXPECT_GT(row.forward.median, 0.0);
      EXPECT_GT(row.backward.median, 0.0);
      EXPECT_NEAR(row.total.mean, row.forward.mean + row.backward.mean + row.optimizer.mean,
                  1e-9 * row.total.mean);  // sums of the same intervals in another order
      EXPECT_EQ(row.base_ms, rows[0].total.median);
    }
  }
}

TEST(BenchMlp, TheOptimizerIsAPartOfItsOwn) {
  MlpBenchOptions options = tiny_options();
  options.dimensions = {};
  options.base = {2, 64, 4, 3};
  const double without = bench_mlp(options, Precision::fp32)[0].optimizer.median;
  options.optimizer = true;
  const MlpRow row = bench_mlp(options, Precision::fp32)[0];
  EXPECT_GT(row.optimizer.median, without);
  const auto json_of = [&](bool optimizer) {
    Table table(TableFormat::json, kTextWidth, "quern-test");
    return nlohmann::json::parse(table.add(table_row(row, optimizer, false)));
  };
  const auto full = json_of(true);
  EXPECT_TRUE(full.contains("optimizer_ms"));
  EXPECT_EQ(full.at("scaled"), "base");
  EXPECT_FALSE(json_of(false).contains("optimizer_ms"));
}

TEST(MlpTable, GivesTheRatioToTheBaseAndTheRate) {
  MlpRow row;
  row.one = {MlpDimension::width, 5, {4, 1000, 500, 2}};
  row.total.median = 4.0;
  row.base_ms = 1.6;
  for (const bool on_gpu : {false, true}) {
    Table json(TableFormat::json, kTextWidth, "quern-test");
    const auto parsed = nlohmann::json::parse(json.add(table_row(row, false, on_gpu)));
    EXPECT_DOUBLE_EQ(parsed.at("ratio"), 2.5);
    // 10^9 a product, 11 of them a step, 2 steps, in 4 ms
    EXPECT_DOUBLE_EQ(parsed.at(on_gpu ? "tflops" : "gflops"), on_gpu ? 5.5 : 5500.0);
  }
}

TEST(BenchMlp, WhatDoesNotFitIsARowAndTheRatioIsMissing) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 1 PiB";
  MlpBenchOptions options = tiny_options();
  options.base = {1, int64_t{1} << 24, 1, 1};  // a weight of 2^50 bytes
  options.dimensions = {};
  const auto rows = bench_mlp(options, Precision::fp32);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_NE(rows[0].out_of_memory, "");
  Table text(TableFormat::text, kTextWidth, "quern-test");
  const std::string line = text.add(table_row(rows[0], false, false));
  EXPECT_NE(line.find("out of memory"), std::string::npos) << line;
}

TEST(BenchMlp, RefusesUnusableOptions) {
  const auto refused = [](auto change, const char* part) {
    MlpBenchOptions options = tiny_options();
    change(options);
    expect_error([&] { bench_mlp(options, Precision::fp32); }, {part});
  };
  refused([](MlpBenchOptions& o) { o.base.width = 16777217; }, "--width is 16777217");
  refused([](MlpBenchOptions& o) { o.scales = {4194304}; },
          "--width is 8, and scaled by 4194304 more than 16777216");
}

}  // namespace
}  // namespace quern
