#include "generate/generate.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "run/model_instance.h"
#include "support/files.h"
#include "support/greedy_reference.h"
#include "text/byte_tokenizer.h"

namespace quern {
namespace {

using testing_support::expect_error;
using testing_support::without_cache;

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

class GenerateTest : public testing::TestWithParam<std::tuple<Precision, AttentionKind>> {};

TEST_P(GenerateTest, TheCacheChangesNoToken) {
  ModelOptions options;
  std::tie(options.precision, options.attention) = GetParam();
  ModelInstance instance(tiny_model(), options, InitScheme::truncated, false, 3);
  const std::vector<int32_t> prompt = {1, 5, 9};
  EXPECT_EQ(generate(instance.model, prompt, greedy(12)).tokens,
            without_cache(instance.model, prompt, 12));
}

INSTANTIATE_TEST_SUITE_P(Modes, GenerateTest,
                         testing::Combine(testing::Values(Precision::fp32, Precision::bf16),
                                          testing::Values(AttentionKind::naive,
                                                          AttentionKind::flash)));

class Generate : public testing::Test {
 protected:
  // Finite weights that overflow in the product.
  void spoil_head() {
    for (Parameter* parameter : instance_.arena.parameters()) {
      if (parameter->name() == "lm_head.weight") fill(parameter->value(), 3e38);
    }
  }

  ModelInstance instance_{tiny_model(), ModelOptions{}, InitScheme::truncated, false, 3};
};

TEST_F(Generate, StopsAtTheContextOrSlides) {
  SampleSection options = greedy(40);
  options.past_context = PastContext::stop;
  EXPECT_EQ(generate(instance_.model, {1, 2, 3}, options).tokens.size(),
            14u);  // 13 fill the context, one more follows
  options.past_context = PastContext::slide;
  EXPECT_EQ(generate(instance_.model, {1, 2, 3}, options).tokens.size(), 40u);
}

TEST_F(Generate, EndsAfterTheStopToken) {
  SampleSection options = greedy(12);
  const std::vector<int32_t> all = generate(instance_.model, {1}, options).tokens;
  options.stop_token = all[4];
  const std::vector<int32_t> cut = generate(instance_.model, {1}, options).tokens;
  EXPECT_EQ(cut.back(), all[4]);
  EXPECT_LE(cut.size(), 5u);
}

TEST_F(Generate, IsSeeded) {
  SampleSection options;
  options.tokens = 30;
  options.temperature = 1.0;
  const std::vector<int32_t> first = generate(instance_.model, {1}, options).tokens;
  EXPECT_EQ(first, generate(instance_.model, {1}, options).tokens);
  options.sample_seed = 2;
  EXPECT_NE(first, generate(instance_.model, {1}, options).tokens);
}

TEST_F(Generate, RefusesAnEmptyPromptAndUnknownTokens) {
  EXPECT_THROW(generate(instance_.model, {}, greedy(1)), Error);
  EXPECT_THROW(generate(instance_.model, {1, 53}, greedy(1)), Error);
}

// Prompts of different lengths, one of them longer than the context.
std::vector<std::vector<int32_t>> some_prompts() {
  std::vector<int32_t> long_one(20);
  std::iota(long_one.begin(), long_one.end(), 7);
  return {{1, 5, 9}, {2}, long_one, {1, 5, 9}, {4, 4, 4, 4, 4, 4, 4}};
}

std::vector<std::vector<int32_t>> tokens_of(const std::vector<Generation>& all) {
  std::vector<std::vector<int32_t>> tokens;
  for (const Generation& one : all) tokens.push_back(one.tokens);
  return tokens;
}

TEST_F(Generate, ABatchGivesEachPromptWhatItGetsAlone) {
  const auto prompts = some_prompts();
  SampleSection options;
  options.tokens = 25;  // slides
  options.temperature = 1.0;
  options.repetition_penalty = 1.2;
  const auto together = tokens_of(generate_batch(instance_.model, prompts, options, 5));
  EXPECT_EQ(tokens_of(generate_batch(instance_.model, prompts, options, 1)), together);
  EXPECT_EQ(tokens_of(generate_batch(instance_.model, prompts, options, 2)), together);
  EXPECT_EQ(tokens_of(generate_batch(instance_.model, prompts, options, 64)), together);
  EXPECT_EQ(generate(instance_.model, prompts[0], options).tokens, together[0]);
  EXPECT_NE(together[0], together[3]) << "the same prompt at another place draws otherwise";
  for (const auto& tokens : together) EXPECT_EQ(tokens.size(), 25u);
}

TEST(LongPrompts, AreWarnedOf) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(long_prompt_warnings(some_prompts(), 20), Texts{});
  EXPECT_EQ(long_prompt_warnings(some_prompts(), 6),
            (Texts{"prompt 3 keeps its last 6 of 20 tokens: ctx is 6",
                   "prompt 5 keeps its last 6 of 7 tokens: ctx is 6"}));
  EXPECT_EQ(long_prompt_warnings({{1, 2, 3}}, 2),
            Texts{"the prompt keeps its last 2 of 3 tokens: ctx is 2"});
}

TEST_F(Generate, OnePromptMayEndWhileOthersGoOn) {
  const auto prompts = some_prompts();
  const SampleSection options = greedy(6);
  const auto whole = tokens_of(generate_batch(instance_.model, prompts, options, 2));
  std::vector<size_t> calls(prompts.size());
  const auto cut = generate_batch(instance_.model, prompts, options, 2, [&](size_t p, int32_t t) {
    EXPECT_EQ(t, whole[p].at(calls[p]));
    return !(++calls[p] == 2 && p == 1);
  });
  for (size_t p = 0; p < prompts.size(); ++p) {
    EXPECT_EQ(cut[p].finish, p == 1 ? FinishReason::stopped : FinishReason::length);
    EXPECT_EQ(cut[p].tokens.size(), p == 1 ? 2u : 6u);
    EXPECT_EQ(calls[p], cut[p].tokens.size()) << "called once for each token";
  }
}

TEST_F(Generate, SaysWhyATextEnded) {
  SampleSection options = greedy(40);
  options.past_context = PastContext::stop;
  EXPECT_EQ(generate(instance_.model, {1, 2, 3}, options).finish, FinishReason::context);
  options.tokens = 5;
  const Generation five = generate(instance_.model, {1, 2, 3}, options);
  EXPECT_EQ(five.finish, FinishReason::length);
  options.stop_token = five.tokens[0];
  const Generation one = generate(instance_.model, {1, 2, 3}, options);
  EXPECT_EQ(one.finish, FinishReason::stop_token);
  EXPECT_EQ(one.tokens, std::vector{five.tokens[0]});
  EXPECT_STREQ(name_of(FinishReason::stop_token), "stop_token");
}

TEST_F(Generate, MakesNothingWhenNothingIsAskedFor) {
  EXPECT_TRUE(generate(instance_.model, {1}, greedy(0)).tokens.empty());
  EXPECT_TRUE(generate_batch(instance_.model, {}, greedy(3), 2).empty());
  EXPECT_THROW(generate_batch(instance_.model, {{1}}, greedy(3), 0), Error);
}

TEST_F(Generate, LogitsThatAreNotFiniteEndIt) {
  spoil_head();
  expect_error(
      [&] {
        generate(instance_.model, {1, 2}, greedy(5));
      },
      {"generate: the logits of token 1 after prompt 1 hold ", " for token 0",
       "expected finite numbers"});
  EXPECT_THROW(generate_batch(instance_.model, {{1}, {2}}, greedy(5), 2), Error);
}

TEST_F(Generate, LogitsAreLookedAtFromTimeToTime) {
  SampleSection options = greedy(300);
  options.past_context = PastContext::slide;
  size_t made = 0;
  const auto spoil = [&](int32_t) {
    if (++made == 10) spoil_head();
    return true;
  };
  expect_error(
      [&] {
        generate(instance_.model, {1, 2}, options, spoil);
      },
      {"expected finite numbers"});
  EXPECT_GE(made, 10u);
  EXPECT_LE(made, 64u);
}

TEST(EndToken, StandsForTheTokenizersOwn) {
  const ByteTokenizer bytes;
  SampleSection options;
  EXPECT_EQ(with_end_token(options, &bytes).stop_token, kEndOfText);
  EXPECT_EQ(with_end_token(options, nullptr).stop_token, -1);
  options.stop_token = -2;
  EXPECT_EQ(with_end_token(options, &bytes).stop_token, -2);
  options.stop_token = 65;
  EXPECT_EQ(with_end_token(options, &bytes).stop_token, 65);
  EXPECT_EQ(encode_prompt(bytes, "hi"), (std::vector<int32_t>{'h', 'i'}));
}

}  // namespace
}  // namespace quern
