#include "kernels/sample.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "base/error.h"
#include "kernels/common/sample_math.h"
#include "support/kernel_test.h"

namespace quern {
namespace {

using kernels::DecodeRow;
using kernels::SampleOptions;

// How often each token is drawn from the logits in `draws` steps of one row.
template <class T = float>
std::vector<int> histogram(const std::vector<T>& logits, const SampleOptions& options, int draws,
                           uint32_t seen_bits = 0) {
  std::vector<int> counts(logits.size());
  DecodeRow row;
  row.options = options;
  row.active = 1;
  for (int i = 0; i < draws; ++i) {
    int32_t token = -2;
    std::array<int32_t, kernels::kResultSlots> results{};
    uint32_t seen = seen_bits;
    kernels::cpu::sample(&token, results.data(), &row, &seen, logits.data(), 1,
                         static_cast<int64_t>(logits.size()), {});
    EXPECT_EQ(results[static_cast<size_t>(i) % results.size()], token);
    EXPECT_EQ(seen, seen_bits | 1u << token);
    ++counts.at(static_cast<size_t>(token));
  }
  EXPECT_EQ(row.drawn, static_cast<uint64_t>(draws));
  EXPECT_EQ(row.length, draws);
  return counts;
}

// Probabilities 0.25, 0.1, 0.5, 0.15.
const std::vector<float> kLogits = {std::log(0.25f), std::log(0.1f), std::log(0.5f),
                                    std::log(0.15f)};

// Within five standard deviations of a binomial distribution: fails once in a million.
void expect_frequencies(const std::vector<int>& counts, const std::vector<double>& expected) {
  double n = 0.0;
  for (const int count : counts) n += count;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double p = expected[i];
    EXPECT_NEAR(counts[i], n * p, 5.0 * std::sqrt(n * p * (1.0 - p))) << "token " << i;
  }
}

TEST(Sample, TemperatureZeroTakesTheLikeliestAndTheLowerIdOfEqualOnes) {
  SampleOptions greedy;
  greedy.temperature = 0.0f;
  EXPECT_EQ(histogram(kLogits, greedy, 3)[2], 3);
  EXPECT_EQ(histogram<float>({1.0f, 4.0f, 4.0f}, greedy, 1)[1], 1);
  EXPECT_EQ(histogram<float>({-0.0f, 0.0f}, greedy, 1)[0], 1);
  EXPECT_EQ(histogram<float>({NAN, -1.0f, NAN}, greedy, 1)[1], 1);
  EXPECT_EQ(histogram<float>({NAN, -INFINITY}, greedy, 1)[0], 1);
}

TEST(Sample, DrawsByProbabilityAndTemperature) {
  SampleOptions options;
  expect_frequencies(histogram(kLogits, options, 4000), {0.25, 0.1, 0.5, 0.15});
  options.temperature = 0.5f;  // squares
  expect_frequencies(histogram(kLogits, options, 4000),
                     {0.0625 / 0.345, 0.01 / 0.345, 0.25 / 0.345, 0.0225 / 0.345});
}

TEST(Sample, TopKKeepsTheLowerIdOfEqualOnes) {
  SampleOptions options;
  options.top_k = 2;
  expect_frequencies(histogram(kLogits, options, 2000), {1.0 / 3, 0.0, 2.0 / 3, 0.0});
  expect_frequencies(histogram<float>({0.0f, 1.0f, 0.0f, 0.0f}, options, 1000),
                     {1 / (1 + M_E), M_E / (1 + M_E), 0.0, 0.0});
  options.top_k = 9;  // more than there are tokens
  expect_frequencies(histogram(kLogits, options, 2000), {0.25, 0.1, 0.5, 0.15});
}

TEST(Sample, TopPKeepsTheShortestRunThatReachesIt) {
  SampleOptions options;
  options.top_p = 0.8;  // 0.5 + 0.25 do not reach it, with 0.15 they do
  expect_frequencies(histogram(kLogits, options, 2000), {0.25 / 0.9, 0.0, 0.5 / 0.9, 0.15 / 0.9});
  options.top_p = 1e-6;
  EXPECT_EQ(histogram(kLogits, options, 20)[2], 20);
  options.top_p = 0.5;  // of the 0.75 that top_k keeps: half
  options.top_k = 2;
  EXPECT_EQ(histogram(kLogits, options, 20)[2], 20);
}

TEST(Sample, MinPIsRelativeToTheLikeliest) {
  SampleOptions options;
  options.min_p = 0.4;  // 0.2 and more
  expect_frequencies(histogram(kLogits, options, 2000), {1.0 / 3, 0.0, 2.0 / 3, 0.0});
  options.min_p = 1.0;
  EXPECT_EQ(histogram(kLogits, options, 20)[2], 20);
}

TEST(Sample, ThePenaltyDividesPositiveLogitsAndMultipliesNegativeOnes) {
  SampleOptions options;
  options.repetition_penalty = 2.0f;
  const double a = std::exp(1.0), b = std::exp(-2.0), total = a + b + 1.0;
  expect_frequencies(histogram<float>({2.0f, -1.0f, 0.0f}, options, 2000, 0b111),
                     {a / total, b / total, 1.0 / total});
}

TEST(Sample, IsSeededAndCountsItsNumbers) {
  SampleOptions options;
  std::vector<float> logits(32, 0.0f);
  EXPECT_EQ(histogram(logits, options, 100), histogram(logits, options, 100));
  SampleOptions other = options;
  other.seed = 2;
  EXPECT_NE(histogram(logits, options, 100), histogram(logits, other, 100));
}

TEST(Sample, LeavesInactiveRowsAlone) {
  std::vector<DecodeRow> rows(2);
  rows[1].active = 1;
  rows[1].options.temperature = 0.0f;
  rows[0].posted = rows[1].posted = 6;
  std::vector<int32_t> tokens = {7, 7}, results(2 * kernels::kResultSlots, 7);
  std::vector<uint32_t> seen(4, 0);
  std::vector<float> logits(2 * 33, 0.0f);
  logits[33 + 32] = 1.0f;
  kernels::cpu::sample(tokens.data(), results.data(), rows.data(), seen.data(), logits.data(), 2,
                       33, {});
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, 32}));
  EXPECT_EQ(results, (std::vector<int32_t>{7, 7, 7, 7, -1, 32, 7, 7}));
  EXPECT_EQ(seen, (std::vector<uint32_t>{0, 0, 0, 1}));
  EXPECT_EQ(rows[0].length, 0);
  EXPECT_EQ(rows[0].posted, 7u);
}

TEST(Sample, TakesBf16) {
  SampleOptions greedy;
  greedy.temperature = 0.0f;
  EXPECT_EQ(histogram<bfloat16>({bfloat16(1.0f), bfloat16(3.0f)}, greedy, 2)[1], 2);
}

TEST(Sample, RefusesOptionsOutOfRange) {
  const auto with = [](auto change) {
    SampleOptions options;
    change(options);
    return [options] { kernels::check_sample_options(options); };
  };
  EXPECT_NO_THROW(with([](SampleOptions&) {})());
  EXPECT_THROW(with([](SampleOptions& o) { o.temperature = -1.0f; })(), Error);
  EXPECT_THROW(with([](SampleOptions& o) { o.temperature = NAN; })(), Error);
  EXPECT_THROW(with([](SampleOptions& o) { o.top_k = -1; })(), Error);
  EXPECT_THROW(with([](SampleOptions& o) { o.top_p = 0.0; })(), Error);
  EXPECT_THROW(with([](SampleOptions& o) { o.min_p = 1.5; })(), Error);
  EXPECT_THROW(with([](SampleOptions& o) { o.repetition_penalty = 0.0f; })(), Error);
}

TEST(SampleMath, WeightsAreExponentials) {
  EXPECT_EQ(kernels::sample_weight(3.0f, 3.0f, 1.0f), kernels::kWeightOne);
  EXPECT_EQ(kernels::sample_weight(-INFINITY, 3.0f, 1.0f), 0u);
  EXPECT_EQ(kernels::sample_weight(-INFINITY, -INFINITY, 1.0f), kernels::kWeightOne);
  EXPECT_EQ(kernels::sample_weight(3.0f, INFINITY, 1.0f), 0u);
  for (double y = 0.0; y > -28.0; y -= 0.0037) {
    const double expected = std::exp(static_cast<float>(y)) * 0x1p40;
    const auto weight =
        static_cast<double>(kernels::sample_weight(static_cast<float>(y), 0.0f, 1.0f));
    // The series leaves out r^7 / 7! <= 1.2e-7 of it, a rounding is 6e-8; and one is cut off.
    EXPECT_NEAR(weight, expected, 5e-7 * expected + 1.0) << "exp(" << y << ")";
  }
}

TEST(SampleMath, OrderedBitsSortAsTheFloatsDo) {
  const std::vector<float> rising = {-INFINITY, -3.0f, -1e-30f, 0.0f, 1e-38f, 2.0f, INFINITY};
  for (size_t i = 1; i < rising.size(); ++i) {
    EXPECT_LT(kernels::ordered(rising[i - 1]), kernels::ordered(rising[i]));
  }
}

}  // namespace
}  // namespace quern
