#include "train/generate.h"

#include <gtest/gtest.h>

#include "autograd/tape.h"
#include "base/error.h"
#include "tensor/factory.h"
#include "train/setup.h"

namespace quern {
namespace {

ModelConfig tiny_model() {
  return {.vocab_size = 53,
          .context = 16,
          .d_model = 32,
          .d_ff = 40,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2};
}

SampleSection greedy(int64_t tokens) {
  SampleSection options;
  options.tokens = tokens;
  options.temperature = 0.0;
  return options;
}

// The reference: the whole sequence anew for each token.
std::vector<int32_t> without_cache(const TransformerLM& model, std::vector<int32_t> tokens,
                                   int64_t count) {
  const NoGrad no_grad;
  std::vector<int32_t> made;
  for (int64_t i = 0; i < count; ++i) {
    const auto T = static_cast<int64_t>(tokens.size());
    const Tensor logits =
        model.logits(from_vector(tokens, {1, T})).value().slice(1, T - 1, T).to(DType::f32);
    made.push_back(sample_token(logits.to_vector<float>(), greedy(1), 0.0));
    tokens.push_back(made.back());
  }
  return made;
}

class GenerateTest : public testing::TestWithParam<std::tuple<Precision, AttentionKind>> {};

TEST_P(GenerateTest, TheCacheChangesNoToken) {
  ModelOptions options;
  std::tie(options.precision, options.attention) = GetParam();
  ModelInstance instance(tiny_model(), options, InitScheme::truncated, false, 3);
  const std::vector<int32_t> prompt = {1, 5, 9};
  EXPECT_EQ(generate(instance.model, prompt, greedy(12)),
            without_cache(instance.model, prompt, 12));
}

INSTANTIATE_TEST_SUITE_P(Modes, GenerateTest,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Values(AttentionKind::naive,
                                                          AttentionKind::flash)));

class Generate : public testing::Test {
 protected:
  ModelInstance instance_{tiny_model(), ModelOptions{}, InitScheme::truncated, false, 3};
};

TEST_F(Generate, StopsAtTheContextOrSlides) {
  SampleSection options = greedy(40);
  options.past_context = PastContext::stop;
  EXPECT_EQ(generate(instance_.model, {1, 2, 3}, options).size(),
            14u);  // 13 fill the context, one more follows
  options.past_context = PastContext::slide;
  EXPECT_EQ(generate(instance_.model, {1, 2, 3}, options).size(), 40u);
}

TEST_F(Generate, EndsAfterTheStopToken) {
  SampleSection options = greedy(12);
  const std::vector<int32_t> all = generate(instance_.model, {1}, options);
  options.stop_token = all[4];
  const std::vector<int32_t> cut = generate(instance_.model, {1}, options);
  EXPECT_EQ(cut.back(), all[4]);
  EXPECT_LE(cut.size(), 5u);
}

TEST_F(Generate, IsSeeded) {
  SampleSection options;
  options.tokens = 30;
  options.temperature = 1.0;
  const std::vector<int32_t> first = generate(instance_.model, {1}, options);
  EXPECT_EQ(first, generate(instance_.model, {1}, options));
  options.sample_seed = 2;
  EXPECT_NE(first, generate(instance_.model, {1}, options));
}

TEST_F(Generate, RefusesAnEmptyPromptAndUnknownTokens) {
  EXPECT_THROW(generate(instance_.model, {}, greedy(1)), Error);
  EXPECT_THROW(generate(instance_.model, {1, 53}, greedy(1)), Error);
}

TEST(SampleToken, FollowsTemperatureTopKAndTopP) {
  // Probabilities 0.5, 0.25, 0.15, 0.1 at temperature 1, in an order that is not sorted.
  const std::vector<float> logits = {std::log(0.25f), std::log(0.1f), std::log(0.5f),
                                     std::log(0.15f)};
  SampleSection options;
  options.temperature = 0.0;
  EXPECT_EQ(sample_token(logits, options, 0.99), 2);
  options.temperature = 1.0;
  EXPECT_EQ(sample_token(logits, options, 0.49), 2);
  EXPECT_EQ(sample_token(logits, options, 0.51), 0);
  EXPECT_EQ(sample_token(logits, options, 0.76), 3);
  EXPECT_EQ(sample_token(logits, options, 0.95), 1);
  options.top_k = 2;  // 2/3 and 1/3
  EXPECT_EQ(sample_token(logits, options, 0.66), 2);
  EXPECT_EQ(sample_token(logits, options, 0.99), 0);
  options.top_k = 0;
  options.top_p = 0.8;  // three tokens hold 0.9
  EXPECT_EQ(sample_token(logits, options, 0.999), 3);
  options.top_p = 1.0;
  options.temperature = 0.5;  // squares: 0.25 of 0.345
  EXPECT_EQ(sample_token(logits, options, 0.72), 2);
  EXPECT_EQ(sample_token(logits, options, 0.73), 0);
}

}  // namespace
}  // namespace quern
