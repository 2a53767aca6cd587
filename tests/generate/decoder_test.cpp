#include "generate/decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "nn/arena.h"
#include "support/greedy_reference.h"
#include "support/random_vectors.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using kernels::SampleOptions;
using testing_support::without_cache;

struct Instance {
  explicit Instance(const ModelConfig& config, const ModelOptions& options = {})
      : model(config, options, InitScheme::truncated),
        arena(model, {options.precision, false, 3}) {}

  TransformerLM model;
  ParameterArena arena;
};

ModelConfig tiny_model() {
  ModelConfig config;
  config.vocab_size = 53;
  config.context = 24;
  config.d_model = 32;
  config.d_ff = 40;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  return config;
}

SampleOptions greedy() {
  SampleOptions options;
  options.temperature = 0.0f;
  return options;
}

std::vector<int32_t> run(Decoder& decoder, int64_t b, int64_t count) {
  std::vector<int32_t> made;
  for (int64_t i = 0; i < count; ++i) {
    decoder.step();
    made.push_back(decoder.fetch()[static_cast<size_t>(b)]);
  }
  return made;
}

class DecoderTest : public testing::Test {
 protected:
  Instance instance_{tiny_model()};
  const TransformerLM& model_ = instance_.model;
};

TEST_F(DecoderTest, RowsOfDifferentLengthsGiveWhatEachGivesAlone) {
  const std::vector<std::vector<int32_t>> prompts = {{1}, {5, 9, 2, 7}, {3, 3}};
  Decoder decoder(model_, 3, 24);
  for (int64_t b = 0; b < 3; ++b) decoder.start(b, prompts[static_cast<size_t>(b)], greedy());
  std::vector<std::vector<int32_t>> made(3);
  for (int i = 0; i < 10; ++i) {
    decoder.step();
    const std::vector<int32_t> tokens = decoder.fetch();
    for (size_t b = 0; b < 3; ++b) made[b].push_back(tokens[b]);
  }
  for (size_t b = 0; b < 3; ++b) EXPECT_EQ(made[b], without_cache(model_, prompts[b], 10));
}

TEST_F(DecoderTest, StepsMayBeFetchedLater) {
  Decoder decoder(model_, 1, 24), prompt_fetch(model_, 1, 24);
  decoder.start(0, {4, 2}, greedy());
  prompt_fetch.start(0, {4, 2}, greedy());
  for (int64_t i = 0; i < Decoder::kMostPending; ++i) decoder.step();
  EXPECT_EQ(decoder.pending(), Decoder::kMostPending);
  EXPECT_THROW(decoder.step(), Error);
  std::vector<int32_t> made;
  for (int64_t i = 0; i < Decoder::kMostPending; ++i) made.push_back(decoder.fetch()[0]);
  EXPECT_EQ(made, run(prompt_fetch, 0, Decoder::kMostPending));
  EXPECT_THROW(decoder.fetch(), Error);
}

TEST_F(DecoderTest, AFinishedRowIsLeftAloneAndCanStartAgain) {
  Decoder decoder(model_, 2, 24);
  decoder.start(0, {1, 2}, greedy());
  decoder.start(1, {8}, greedy());
  decoder.step();
  decoder.finish(0);
  decoder.step();
  EXPECT_NE(decoder.fetch()[0], -1);
  const std::vector<int32_t> second = decoder.fetch();
  EXPECT_EQ(second[0], -1);
  EXPECT_GE(second[1], 0);
  EXPECT_EQ(decoder.length(0), 2);
  EXPECT_EQ(decoder.length(1), 2);
  decoder.start(0, {6, 6, 6}, greedy());
  EXPECT_EQ(run(decoder, 0, 5), without_cache(model_, {6, 6, 6}, 5));
}

TEST_F(DecoderTest, SamplingIsSeededAndOfTheRowAlone) {
  SampleOptions options;
  options.seed = 11;
  Decoder one(model_, 1, 24), three(model_, 3, 24);
  one.start(0, {1, 2}, options);
  three.start(0, {9, 9, 9}, SampleOptions{});
  three.start(2, {1, 2}, options);
  const std::vector<int32_t> alone = run(one, 0, 15);
  EXPECT_EQ(run(three, 2, 15), alone);
  options.seed = 12;
  one.start(0, {1, 2}, options);
  EXPECT_NE(run(one, 0, 15), alone);
}

TEST_F(DecoderTest, ARestartKeepsTheDrawsAndWhatWasSeen) {
  // The penalty excludes every seen token: with 53 tokens and 20 draws, no token repeats.
  SampleOptions options = greedy();
  options.repetition_penalty = 1e6f;
  Decoder decoder(model_, 1, 24);
  decoder.start(0, {0}, options);
  std::vector<int32_t> all = {0};
  for (int i = 0; i < 20; ++i) {
    if (i == 10) decoder.restart(0, {all.end() - 3, all.end()});
    decoder.step();
    all.push_back(decoder.fetch()[0]);
  }
  // A seen token's logit is almost 0 or very negative, so an unseen positive one is the largest.
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_EQ(decoder.length(0), 12);
}

// Compares the CPU twins of the fused step's kernels with the model's own ops.
struct Variant {
  const char* name;
  int64_t kv_heads, head_dim;
  bool bias, norm, tied;
  Precision precision;
  ResidualType residual;
};

class FusedStepTest : public testing::TestWithParam<Variant> {};

TEST_P(FusedStepTest, GivesTheLogitsOfTheComposedStep) {
  const Variant& variant = GetParam();
  ModelConfig config = tiny_model();
  config.kv_heads = variant.kv_heads;
  config.head_dim = variant.head_dim;
  config.qkv_bias = variant.bias;
  config.qk_norm = variant.norm;
  config.tied = variant.tied;
  ModelOptions options;
  options.precision = variant.precision;
  options.residual = variant.residual;
  Instance instance(config, options);
  testing_support::randomize_vectors(instance.arena);

  Decoder composed(instance.model, 2, 24, Decoder::Way::composed);
  Decoder fused(instance.model, 2, 24, Decoder::Way::launched);
  ASSERT_TRUE(fused.fused());
  for (Decoder* decoder : {&composed, &fused}) {
    decoder->start(0, {1, 2, 3}, greedy());
    decoder->start(1, {7}, greedy());
  }
  // FP32: sums of 40 terms in another order, two blocks deep. BF16: every activation is rounded to
  // 8 bits, and one different rounding changes the rest as much: some roundings of 2^-9.
  const double bound = variant.precision == Precision::bf16 ? 3e-2 : 1e-5;
  for (int step = 0; step < 8; ++step) {
    composed.step();
    fused.step();
    const std::vector<float> expected = composed.logits().to(DType::f32).to_vector<float>();
    const std::vector<float> logits = fused.logits().to(DType::f32).to_vector<float>();
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < logits.size(); ++i) {
      difference += std::pow(logits[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    ASSERT_LE(std::sqrt(difference / norm), bound) << "step " << step;
    const std::vector<int32_t> tokens = composed.fetch();
    // BF16 may pick another of two nearly equal tokens; both continue from the same tokens.
    if (fused.fetch() == tokens) continue;
    ASSERT_EQ(variant.precision, Precision::bf16);
    break;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, FusedStepTest,
    testing::Values(
        Variant{"plain", 0, 0, false, false, false, Precision::fp32, ResidualType::bf16},
        Variant{"grouped", 2, 0, false, false, true, Precision::fp32, ResidualType::bf16},
        Variant{"biased", 1, 16, true, false, false, Precision::fp32, ResidualType::bf16},
        Variant{"normed", 2, 24, false, true, true, Precision::fp32, ResidualType::bf16},
        Variant{"bf16", 2, 0, true, true, false, Precision::bf16, ResidualType::bf16},
        Variant{"fp32_residual", 2, 0, true, true, false, Precision::bf16, ResidualType::fp32}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(DecoderTest, SaysWhatIsWrong) {
  EXPECT_THROW(Decoder(model_, 0, 24), Error);
  EXPECT_THROW(Decoder(model_, 1, 25), Error);
  Decoder decoder(model_, 2, 4);
  EXPECT_THROW(decoder.step(), Error);  // no row is active
  EXPECT_THROW(decoder.start(2, {1}, greedy()), Error);
  EXPECT_THROW(decoder.start(0, {}, greedy()), Error);
  EXPECT_THROW(decoder.start(0, {1, 53}, greedy()), Error);
  EXPECT_THROW(decoder.start(0, {1, 2, 3, 4, 5}, greedy()), Error);
  EXPECT_THROW(decoder.restart(0, {1}), Error);
  SampleOptions wrong;
  wrong.top_p = 2.0;
  EXPECT_THROW(decoder.start(0, {1}, wrong), Error);
  decoder.start(0, {1, 2, 3, 4}, greedy());
  decoder.step();
  EXPECT_THROW(decoder.step(), Error);  // its cache is full
}

}  // namespace
}  // namespace quern
