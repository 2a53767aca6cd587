#include "bench/attention.h"

#include <nlohmann/json.hpp>
#include <set>

#include "config/config.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

AttentionBenchOptions tiny_options() {
  AttentionBenchOptions options;
  options.grids = {AttentionGrid::course};
  options.dims = {16};
  options.lengths = {32};
  options.warmup = 1;
  options.steps = 3;
  return options;
}

nlohmann::json json_of(const AttentionRow& row) {
  return nlohmann::json::parse(
      Table(TableFormat::json, kTextWidth, "quern-0.1.0").add(table_row(row)));
}

// torch_attention.py's shapes: 36 of --grid lm, 8 of --grid d80, 20 of --grid seed.
TEST(AttentionCases, AreThePeersGrids) {
  AttentionBenchOptions options;
  options.grids = {AttentionGrid::model};
  const std::vector<AttentionCase> model = attention_cases(options);
  ASSERT_EQ(model.size(), 36u + 8u);
  EXPECT_EQ(model.front(), (AttentionCase{32, 32, 512, 64, true}));
  EXPECT_EQ(model[1], (AttentionCase{32, 32, 512, 64, false}));
  EXPECT_EQ(model[12], (AttentionCase{32, 21, 512, 96, true}));
  EXPECT_EQ(model[35], (AttentionCase{1, 16, 16384, 128, false}));
  EXPECT_EQ(model[36], (AttentionCase{32, 32, 512, 80, true}));
  EXPECT_EQ(model.back(), (AttentionCase{4, 32, 4096, 80, false}));
  for (const AttentionCase& one : model) {
    EXPECT_EQ(one.B * one.T, 16384);
    EXPECT_EQ(one.H * one.D, one.D == 80 ? 2560 : one.D == 96 ? 2016 : 2048);
  }

  options.grids = {AttentionGrid::course};
  const std::vector<AttentionCase> course = attention_cases(options);
  ASSERT_EQ(course.size(), 20u);
  EXPECT_EQ(course.front(), (AttentionCase{8, 1, 256, 16, false}));
  EXPECT_EQ(course.back(), (AttentionCase{8, 1, 16384, 128, false}));
}

TEST(AttentionCases, OptionsReplaceTheGridsOwn) {
  AttentionBenchOptions options;
  options.grids = {AttentionGrid::model};
  options.dims = {80, 4096};
  options.lengths = {100};
  options.causal = {true};
  options.tokens = 250;
  EXPECT_EQ(attention_cases(options),
            (std::vector<AttentionCase>{{2, 32, 100, 80, true}, {2, 1, 100, 4096, true}}));
  options.tokens = 50;  // less than a sequence
  EXPECT_EQ(attention_cases(options)[0].B, 1);
}

TEST(AttentionCases, ShapesReplaceTheGrids) {
  AttentionBenchOptions options;
  options.shapes = {{2, 6, 100, 24, false, 3}};
  EXPECT_EQ(attention_cases(options),
            (std::vector<AttentionCase>{{2, 6, 100, 24, true, 3}, {2, 6, 100, 24, false, 3}}));
  options.causal = {true};
  EXPECT_EQ(attention_cases(options), (std::vector<AttentionCase>{{2, 6, 100, 24, true, 3}}));
}

// The default shapes of `bench attention` on the CPU; larger ones would take minutes there.
TEST(AttentionCases, TheSmallGridsAreShort) {
  AttentionBenchOptions options;
  options.small = true;
  options.tokens = 512;
  const std::vector<AttentionCase> cases = attention_cases(options);
  EXPECT_EQ(cases.size(), 6u + 6u);
  for (const AttentionCase& one : cases) {
    EXPECT_LE(one.forward_flops(), 2.2e9) << one.T << " " << one.D;
  }
}

// 4 B H T^2 D: all integers are below 2^53, so the sum is exact.
TEST(AttentionCase, CountsFlopsAsThePeer) {
  const AttentionCase all{2, 3, 10, 16, false}, causal{2, 3, 10, 16, true};
  EXPECT_EQ(all.forward_flops(), 4.0 * 2 * 3 * 10 * 10 * 16);
  EXPECT_EQ(causal.forward_flops(), all.forward_flops() / 2);
  EXPECT_EQ(causal.backward_flops(), 2.5 * causal.forward_flops());
}

TEST(BenchAttention, ARowForEachCaseTypeAndVariant) {
  AttentionBenchOptions options = tiny_options();
  options.lengths = {32, 48};
  int told = 0;
  const auto rows = bench_attention(options, [&](const AttentionRow&) { ++told; });
  ASSERT_EQ(rows.size(), 2u * 2u * 2u);  // two lengths, two types; naive and flash on the CPU
  EXPECT_EQ(told, 8);
  std::set<std::string> names;
  for (const AttentionRow& row : rows) {
    EXPECT_EQ(row.out_of_memory, "");
    EXPECT_GT(row.forward.median, 0.0);
    EXPECT_GT(row.backward.median, 0.0);
    EXPECT_DOUBLE_EQ(row.forward_tflops(), row.shape.forward_flops() / row.forward.median / 1e9);
    EXPECT_DOUBLE_EQ(row.backward_tflops(), row.shape.backward_flops() / row.backward.median / 1e9);
    EXPECT_GE(row.peak_bytes, row.saved_bytes);
    names.insert(name_of(row.variant));
  }
  EXPECT_EQ(names, (std::set<std::string>{"naive", "flash"}));
}

// Flash holds q, o and d_o with H heads, k and v with Hk, and one FP32 number a query.
TEST(BenchAttention, GroupedHeadsHoldFewerKeys) {
  AttentionBenchOptions options = tiny_options();
  options.shapes = {{2, 6, 20, 8, false, 3}};
  options.causal = {true};
  options.precisions = {Precision::fp32};
  options.variants = {AttentionVariant::flash};
  const auto rows = bench_attention(options);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].saved_bytes, 4 * 2 * 20 * (8 * (3 * 6 + 2 * 3) + 6));
  EXPECT_EQ(json_of(rows[0]).at("Hk"), 3);
}

// Runs only on request. Without a GPU it is flash.
TEST(BenchAttention, PortableIsAVariantOfItsOwn) {
  AttentionBenchOptions options = tiny_options();
  options.precisions = {Precision::bf16};
  options.variants = {AttentionVariant::portable};
  const auto rows = bench_attention(options);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_GT(rows[0].backward.median, 0.0);
  EXPECT_EQ(json_of(rows[0]).at("backend"), "portable");
}

int64_t elements(const AttentionCase& s) {
  return s.B * s.H * s.T * s.D;
}

// Between forward and backward flash holds q, k, v, o, do and one FP32 number a query: it grows as
// T. naive also holds at least the (T, T) weights.
TEST(BenchAttention, FlashSavesAsTAndNaiveAsItsSquare) {
  AttentionBenchOptions options = tiny_options();
  options.lengths = {128, 256};
  options.precisions = {Precision::fp32};
  const auto rows = bench_attention(options);
  ASSERT_EQ(rows.size(), 4u);
  for (const AttentionRow& row : rows) {
    const AttentionCase& s = row.shape;
    const int64_t lse = 4 * s.B * s.H * s.T, weights = 4 * s.B * s.H * s.T * s.T;
    if (row.variant == AttentionVariant::flash) {
      EXPECT_EQ(row.saved_bytes, 5 * 4 * elements(s) + lse);
    } else {
      EXPECT_GE(row.saved_bytes, 5 * 4 * elements(s) + weights);
    }
  }
  EXPECT_EQ(rows[3].saved_bytes, 2 * rows[1].saved_bytes);
  EXPECT_GT(rows[2].saved_bytes, 3 * rows[0].saved_bytes);
}

// The inputs of 128 MiB fit, the scores of 2^43 bytes do not.
TEST(BenchAttention, WhatDoesNotFitIsARowAndNotAnEnd) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer ends the program at an allocation of 8 TiB";
  AttentionBenchOptions options = tiny_options();
  options.precisions = {Precision::fp32};
  options.variants = {AttentionVariant::naive};
  options.dims = {8};
  options.lengths = {int64_t{1} << 19, 8};
  const Allocator& allocator = *Context::current().allocator(kCpu);
  const int64_t before = allocator.stats().allocated;
  const auto rows = bench_attention(options);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_NE(rows[0].out_of_memory, "");
  EXPECT_EQ(rows[0].forward_tflops(), 0.0);
  EXPECT_EQ(rows[0].peak_bytes, 0);
  const auto json = json_of(rows[0]);
  EXPECT_EQ(json.at("error"), "OOM");
  EXPECT_FALSE(json.contains("fwd_ms"));
  const std::string text = Table(TableFormat::text, kTextWidth, "quern").add(table_row(rows[0]));
  EXPECT_NE(text.find("out of memory"), std::string::npos);
  EXPECT_EQ(rows[1].out_of_memory, "");
  EXPECT_GT(rows[1].forward.median, 0.0);
  EXPECT_EQ(allocator.stats().allocated, before);
}

TEST(BenchAttention, RefusesUnusableOptions) {
  AttentionBenchOptions options = tiny_options();
  options.variants = {AttentionVariant::naive_graph};
  expect_error([&] { bench_attention(options); }, {"naive_graph", "GPU"});
}

TEST(BenchAttention, ChecksEveryShapeBeforeTheFirstRow) {
  AttentionBenchOptions options = tiny_options();
  options.dims = {8, 300};
  const auto refused = [&](const std::string& found) {
    int rows = 0;
    expect_error([&] { bench_attention(options, [&](const AttentionRow&) { ++rows; }); },
                 {found + ", which flash does not support", "choose --variant naive"});
    EXPECT_EQ(rows, 0);
  };
  refused("--dims has D = 300");
  options.variants = {AttentionVariant::naive, AttentionVariant::portable};
  options.shapes = {{1, 2, 4, 8}, {1, 2, 4, 12}};
  refused("--shapes has D = 12");
  options.variants = {AttentionVariant::naive};
  EXPECT_EQ(bench_attention(options).size(), 2u * 2u * 2u);  // two shapes, causal or not, two types
}

TEST(AttentionReport, JsonHasThePeersKeys) {
  AttentionRow row;
  row.shape = {1, 2, 1000, 50, true};
  row.forward.median = 0.5;
  row.backward.median = 2.0;
  row.saved_bytes = 3 << 20;
  row.peak_bytes = 4 << 20;
  const auto json = json_of(row);
  std::set<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{"peer", "backend", "dtype", "B", "H", "Hk", "T", "D",
                                         "causal", "fwd_ms", "bwd_ms", "fwd_tflops", "bwd_tflops",
                                         "saved_mib", "peak_mib"}));
  EXPECT_EQ(json.at("backend"), "flash");
  EXPECT_EQ(json.at("dtype"), "bf16");
  EXPECT_EQ(json.at("causal"), true);
  EXPECT_DOUBLE_EQ(json.at("fwd_tflops"), 0.4);  // 2 10^8 FLOP in half a millisecond
  EXPECT_DOUBLE_EQ(json.at("bwd_tflops"), 0.25);
  EXPECT_DOUBLE_EQ(json.at("saved_mib"), 3.0);
  EXPECT_DOUBLE_EQ(json.at("peak_mib"), 4.0);
}

TEST(AttentionReport, CsvAndMarkdownHaveTheSameCells) {
  AttentionRow row;
  row.shape = {1, 2, 1000, 50, true};
  row.forward.median = 0.5;
  row.backward.median = 2.0;
  Table csv(TableFormat::csv, kTextWidth, "quern-0.1.0");
  Table markdown(TableFormat::markdown, kTextWidth, "quern-0.1.0");
  EXPECT_EQ(csv.add(table_row(row)),
            "peer,backend,dtype,B,H,Hk,T,D,causal,fwd_ms,bwd_ms,fwd_tflops,bwd_tflops,saved_mib,"
            "peak_mib,error\r\n"
            "quern-0.1.0,flash,bf16,1,2,2,1000,50,true,0.5000,2.0000,0.400,0.250,0.0,0.0,\r\n");
  markdown.add(table_row(row));
  row.shape.Hk = 1;
  EXPECT_EQ(
      markdown.add(table_row(row)),
      "| flash | bf16 | 1 | 2/1 | 1000 | 50 | yes | 0.5000 | 2.0000 | 0.400 | 0.250 | 0.0 | 0.0 "
      "|\n");
}

}  // namespace
}  // namespace quern
