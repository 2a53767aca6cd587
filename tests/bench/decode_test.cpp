#include "bench/decode.h"

#include <gtest/gtest.h>

#include "config/config.h"
#include "model/transformer_lm.h"
#include "nn/arena.h"
#include "support/files.h"

namespace quern {
namespace {

ModelConfig tiny_model() {
  ModelConfig config;
  config.vocab_size = 53;
  config.context = 32;
  config.d_model = 32;
  config.d_ff = 40;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  return config;
}

DecodeBenchOptions few_tokens() {
  DecodeBenchOptions options;
  options.batch = 2;
  options.prompt = 3;
  options.tokens = 5;
  return options;
}

TEST(BenchDecode, CountsTheWeightsThatAStepReads) {
  for (const bool tied : {false, true}) {
    ModelConfig config = tiny_model();
    config.tied = tied;
    config.qk_norm = true;
    config.qkv_bias = true;
    TransformerLM model(config, {});
    const ParameterArena arena(model, {Precision::fp32, false});
    int64_t fp32 = 0, bf16 = 0;
    for (const Parameter* parameter : arena.parameters()) {
      if (!tied && parameter->name() == "model.embed_tokens.weight") continue;
      const bool norm = parameter->name().find("norm") != std::string::npos;
      fp32 += 4 * parameter->numel();
      bf16 += (norm ? 4 : 2) * parameter->numel();
    }
    EXPECT_EQ(decode_weight_bytes(config, 4), fp32);
    EXPECT_EQ(decode_weight_bytes(config, 2), bf16);
  }
}

TEST(BenchDecode, MeasuresEveryWay) {
  for (const auto way : {Decoder::Way::automatic, Decoder::Way::launched, Decoder::Way::composed}) {
    DecodeBenchRow row = bench_decode("tiny", tiny_model(), {}, way, few_tokens());
    EXPECT_GT(row.step.median, 0.0);
    EXPECT_GT(row.waited_ms, 0.0);
    EXPECT_EQ(row.cache_bytes, 2 * 2 * 16 * 4 * 2 * (3 + 2));
    row.read_tb_per_second = 1e-12 * static_cast<double>(row.weight_bytes);  // all in a second
    EXPECT_DOUBLE_EQ(row.weights_ms(), 1000.0);
    EXPECT_DOUBLE_EQ(row.tokens_per_second(), 2e3 / row.step.median);
  }
}

TEST(BenchDecode, RefusesAShortContext) {
  const DecodeBenchOptions options = few_tokens();
  ModelConfig config = tiny_model();
  config.context = 16;
  testing_support::expect_error(
      [&] { bench_decode("tiny", config, {}, {}, options); },
      {"--ctx is 16, expected at least 17: the prompt, 9 tokens of warm-up and the measured ones"});
  config.context = 17;  // 3 + 9 + 5
  EXPECT_GT(bench_decode("tiny", config, {}, {}, options).step.median, 0.0);
}

TEST(BenchDecode, MeasuresReading) {
  EXPECT_GT(measure_read(1 << 20), 1e8);  // 0.1 GB/s: any memory does that
}

TEST(BenchDecode, ARowHasItsFigures) {
  DecodeBenchRow row;
  row.step.median = 2.0;
  row.batch = 4;
  row.weight_bytes = 1'000'000'000;
  row.read_tb_per_second = 1.0;
  EXPECT_DOUBLE_EQ(std::get<double>(table_row(row).figures.back().value),
                   2.0);  // times the reading
  row.out_of_memory = "no room";
  Table csv(TableFormat::csv, kTextWidth, "quern-test");
  EXPECT_NE(csv.add(table_row(row)).find(",4,0,,,,,,,,,OOM\r\n"), std::string::npos);
}

}  // namespace
}  // namespace quern
