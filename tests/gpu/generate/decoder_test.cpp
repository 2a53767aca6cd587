// The decoder on the GPU: its fused step against the model's own ops, the graph against single
// launches, and rows against the same rows in other batches.
#include "generate/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "autograd/tape.h"
#include "gpu/other_work.h"
#include "nn/arena.h"
#include "support/random_vectors.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using kernels::SampleOptions;

struct Variant {
  const char* name;
  int64_t heads, kv_heads, head_dim;
  bool bias, norm, tied;
  Precision precision;
  ResidualType residual = ResidualType::bf16;
  int64_t d_model = 136, d_ff = 200, layers = 3;
  int64_t most_rows = 8;  // the one kernel's limit: more rows do not fit
  int64_t vocab = 501;
};

// A model on the current Context.
struct Built {
  std::unique_ptr<TransformerLM> model;
  std::unique_ptr<ParameterArena> arena;
};

// Random, but the same for Contexts with the same seed.
Built build(const Variant& variant) {
  ModelConfig config;
  config.vocab_size = variant.vocab;
  config.context = 320;
  config.d_model = variant.d_model;
  config.d_ff = variant.d_ff;
  config.layers = variant.layers;
  config.heads = variant.heads;
  config.kv_heads = variant.kv_heads;
  config.head_dim = variant.head_dim;
  config.qkv_bias = variant.bias;
  config.qk_norm = variant.norm;
  config.tied = variant.tied;
  ModelOptions options;
  options.precision = variant.precision;
  options.residual = variant.residual;
  Built built;
  built.model = std::make_unique<TransformerLM>(config, options, InitScheme::truncated);
  built.arena = std::make_unique<ParameterArena>(
      *built.model, ParameterArena::Options{variant.precision, false, 3});
  testing_support::randomize_vectors(*built.arena);
  return built;
}

class DecoderGpu : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    context_ = std::make_unique<Context>(Device{DeviceType::cuda, 0}, 1);
    scope_ = std::make_unique<ContextScope>(*context_);
    built_ = build(GetParam());
    model_ = built_.model.get();
  }
  void TearDown() override {
    built_ = {};
    scope_.reset();
    context_.reset();
  }

  // Each prompt in a row of its own, `steps` tokens: logits and tokens of every step.
  struct Run {
    std::vector<std::vector<float>> logits;
    std::vector<std::vector<int32_t>> tokens;
  };
  Run run(Decoder& decoder, int steps) const {
    Run run;
    for (int i = 0; i < steps; ++i) {
      decoder.step();
      run.logits.push_back(decoder.logits().to(DType::f32).to_vector<float>());
      run.tokens.push_back(decoder.fetch());
    }
    return run;
  }
  static std::vector<int32_t> prompt(int64_t length, int32_t seed) {
    std::vector<int32_t> tokens;
    const auto V = static_cast<int32_t>(GetParam().vocab);
    for (int32_t i = 0; i < length; ++i) tokens.push_back((i * 37 + seed * 101 + 5) % V);
    return tokens;
  }
  static SampleOptions sampling(uint64_t seed) {
    SampleOptions options;
    options.temperature = 0.9f;
    options.top_k = 50;
    options.top_p = 0.95;
    options.repetition_penalty = 1.1f;
    options.seed = seed;
    return options;
  }

  std::unique_ptr<Context> context_;
  std::unique_ptr<ContextScope> scope_;
  Built built_;
  TransformerLM* model_ = nullptr;  // built_'s
};

double relative_error(const std::vector<float>& actual, const std::vector<float>& expected) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(actual[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(difference / norm);
}

TEST_P(DecoderGpu, StepsGiveTheLogitsOfAFullForward) {
  const NoGrad no_grad;
  // FP32: sums of 200 terms in another order, three blocks deep, and exp2 for exp. BF16: roundings
  // of 2^-9 in the other direction, which propagate through three blocks.
  const double bound = GetParam().precision == Precision::bf16 ? 3e-2 : 2e-5;
  for (const int64_t length : {1, 5, 255}) {
    Decoder decoder(*model_, 1, 320);
    ASSERT_TRUE(decoder.fused());
    std::vector<int32_t> tokens = prompt(length, 1);
    decoder.start(0, tokens, sampling(1));
    for (int i = 0; i < 20; ++i) {
      decoder.step();
      const auto T = static_cast<int64_t>(tokens.size());
      const std::vector<float> expected = model_->logits(from_vector(tokens, {1, T}))
                                              .value()
                                              .slice(1, T - 1, T)
                                              .to(DType::f32)
                                              .to_vector<float>();
      const std::vector<float> logits = decoder.logits().to(DType::f32).to_vector<float>();
      ASSERT_LE(relative_error(logits, expected), bound) << "after " << T << " tokens";
      tokens.push_back(decoder.fetch()[0]);
      ASSERT_GE(tokens.back(), 0);
    }
  }
}

// Under BF16 the graph's kernel computes the whole model; the others are launched one by one.
TEST_P(DecoderGpu, TheGraphGivesTheBitsOfSingleLaunches) {
  for (const int64_t B : {1, 2, 3, 4, 5, 8}) {
    Decoder graph(*model_, B, 320), launched(*model_, B, 320, Decoder::Way::launched);
    EXPECT_EQ(graph.one_kernel(),
              GetParam().precision == Precision::bf16 && B <= GetParam().most_rows);
    EXPECT_FALSE(launched.one_kernel());
    for (Decoder* decoder : {&graph, &launched}) {
      for (int64_t b = 0; b < B; ++b) {
        decoder->start(b, prompt(1 + b * 43, static_cast<int32_t>(b)),
                       sampling(static_cast<uint64_t>(b)));
      }
    }
    const Run first = run(graph, 12), second = run(launched, 12);
    EXPECT_EQ(first.tokens, second.tokens) << B << " rows";
    EXPECT_EQ(first.logits, second.logits) << B << " rows";
    for (Decoder* decoder : {&graph, &launched}) {  // the same graph, other rows and lengths
      decoder->finish(0);
      decoder->start(B - 1, prompt(300, 3), sampling(3));
    }
    const Run third = run(graph, 3), fourth = run(launched, 3);
    EXPECT_EQ(third.tokens, fourth.tokens) << B << " rows";
    EXPECT_EQ(third.tokens[0][0] == -1, B > 1);
    EXPECT_GE(third.tokens[0].back(), 0);
  }
}

TEST_P(DecoderGpu, ARowDoesNotDependOnTheOthers) {
  const int64_t lengths[] = {1, 40, 7, 130, 2, 64, 65, 9, 33, 250};
  const int64_t V = GetParam().vocab;
  const auto start = [&](Decoder& decoder, int64_t row, int64_t b) {
    decoder.start(row, prompt(lengths[b], static_cast<int32_t>(b)),
                  sampling(static_cast<uint64_t>(b)));
  };
  for (const int64_t B : {8, 10}) {  // under BF16 the one kernel takes 8 and one row
    Decoder together(*model_, B, 320);
    for (int64_t b = 0; b < B; ++b) start(together, b, b);
    const Run all = run(together, 10);
    Decoder alone(*model_, 1, 320);
    for (const int64_t b : {int64_t{0}, int64_t{3}, B - 1}) {
      start(alone, 0, b);
      const Run one = run(alone, 10);
      for (size_t i = 0; i < 10; ++i) {
        EXPECT_EQ(one.tokens[i][0], all.tokens[i][static_cast<size_t>(b)]) << "row " << b;
        const auto begin = all.logits[i].begin() + b * V;
        EXPECT_EQ(one.logits[i], std::vector<float>(begin, begin + V)) << "row " << b;
      }
    }
  }
}

// An inactive row is skipped, and a restarted row sees nothing of the previous one.
TEST_P(DecoderGpu, RowsMayEndAndBeginAgain) {
  constexpr int64_t B = 3;
  Decoder graph(*model_, B, 320), launched(*model_, B, 320, Decoder::Way::launched);
  const auto all_do = [&](auto&& f) {
    for (Decoder* decoder : {&graph, &launched}) f(*decoder);
    const Run one = run(graph, 5), other = run(launched, 5);
    EXPECT_EQ(one.tokens, other.tokens);
    return one.tokens;
  };
  all_do([](Decoder& decoder) {
    for (int32_t b = 0; b < B; ++b) decoder.start(b, prompt(3 + 90 * b, b), sampling(1));
  });
  const auto without = all_do([](Decoder& decoder) { decoder.finish(1); });
  EXPECT_EQ(without[4][1], -1);
  EXPECT_GE(without[4][2], 0);
  const auto again = all_do([](Decoder& decoder) {
    decoder.finish(0);
    decoder.finish(2);
    decoder.start(1, prompt(7, 9), sampling(1));
  });
  EXPECT_EQ(again[4][0], -1);
  EXPECT_EQ(again[4][2], -1);
  Decoder alone(*model_, 1, 320);
  alone.start(0, prompt(7, 9), sampling(1));
  const Run expected = run(alone, 5);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(again[i][1], expected.tokens[i][0]);
}

// Each of the two kernels needs the whole GPU; neither may wait for the other forever.
TEST_P(DecoderGpu, TwoMayDecodeAtTheSameTime) {
  Context other_context(Device{DeviceType::cuda, 0}, 1);
  Built built;
  std::unique_ptr<Decoder> other;
  {
    const ContextScope scope(other_context);
    built = build(GetParam());
    other = std::make_unique<Decoder>(*built.model, 1, 320);
    other->start(0, prompt(4, 1), sampling(7));
  }
  Decoder one(*model_, 1, 320), alone(*model_, 1, 320);
  one.start(0, prompt(4, 1), sampling(7));
  alone.start(0, prompt(4, 1), sampling(7));
  constexpr size_t kSteps = 64;
  const Run expected = run(alone, kSteps);
  one.step();
  for (size_t i = 0; i < kSteps; ++i) {
    {
      const ContextScope scope(other_context);
      other->step();
    }
    if (i + 1 < kSteps) one.step();
    ASSERT_EQ(one.fetch(), expected.tokens[i]) << "step " << i;
    const ContextScope scope(other_context);
    ASSERT_EQ(other->fetch(), expected.tokens[i]) << "step " << i;
  }
  const ContextScope scope(other_context);
  other.reset();
  built = {};
}

// Blocks that wait for each other's values get them in any order, and must not see older ones: on a
// GPU of its own, and on one that other work keeps busy.
TEST_P(DecoderGpu, AThousandTimesTheSameStepGivesTheSameBits) {
  Decoder decoder(*model_, 1, 320);
  std::optional<test::OtherWork> other;
  const int64_t V = GetParam().vocab;
  const std::vector<float> poison(static_cast<size_t>(V), std::nanf(""));
  std::vector<float> first;
  for (int i = 0; i < 2000; ++i) {
    if (i == 1000) other.emplace();
    decoder.start(0, prompt(20, 1), sampling(1));
    copy(decoder.logits(), from_vector(poison, {1, V}).to(decoder.logits().dtype()));
    decoder.step();
    const std::vector<float> logits = decoder.logits().to(DType::f32).to_vector<float>();
    if (i == 0) first = logits;
    ASSERT_EQ(logits, first) << "step " << i;
    ASSERT_TRUE(std::isfinite(first[0]));
    decoder.fetch();
  }
}

TEST_P(DecoderGpu, StepsMayRunAheadOfTheHost) {
  Decoder ahead(*model_, 1, 320), one_by_one(*model_, 1, 320);
  ahead.start(0, prompt(4, 1), sampling(7));
  one_by_one.start(0, prompt(4, 1), sampling(7));
  std::vector<int32_t> made;
  ahead.step();
  for (int i = 1; i < 16; ++i) {
    ahead.step();
    made.push_back(ahead.fetch()[0]);
  }
  made.push_back(ahead.fetch()[0]);
  std::vector<int32_t> expected;
  for (const std::vector<int32_t>& tokens : run(one_by_one, 16).tokens) {
    expected.push_back(tokens[0]);
  }
  EXPECT_EQ(made, expected);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DecoderGpu,
    testing::Values(
        Variant{"plain", 4, 0, 32, false, false, false, Precision::fp32},
        Variant{"grouped", 6, 2, 40, false, false, true, Precision::fp32},
        Variant{"biased_bf16", 4, 2, 64, true, false, false, Precision::bf16},
        Variant{"normed_bf16", 7, 1, 80, false, true, true, Precision::bf16},
        Variant{"fp32_residual", 17, 0, 0, true, true, false, Precision::bf16, ResidualType::fp32},
        // Rows longer than the threads of a block take at once; heads of 32 lanes.
        Variant{"long_rows", 2, 0, 256, false, false, false, Precision::bf16, ResidualType::bf16,
                136, 4104},
        // Some blocks have no rows of q, k, v or of the head; fewer blocks than the GPU takes.
        Variant{"few_heads", 2, 1, 16, false, false, false, Precision::bf16, ResidualType::bf16,
                136, 272, 3, 8, 65},
        Variant{"narrow", 2, 1, 16, true, true, true, Precision::bf16, ResidualType::fp32, 64, 96,
                2, 8, 65},
        Variant{"wide", 12, 3, 128, false, false, true, Precision::bf16, ResidualType::bf16, 2056,
                12808, 1, 6}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quern
