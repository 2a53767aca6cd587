#include "data/sampler.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "support/files.h"

namespace quern {
namespace {

using testing_support::expect_error;

std::vector<int64_t> draw(const RandomSampler& sampler, uint64_t batch, size_t rows) {
  std::vector<int64_t> starts(rows);
  sampler.draw(batch, starts);
  return starts;
}

TokenSource counting(int64_t size) {
  std::vector<uint16_t> tokens(static_cast<size_t>(size));
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  return TokenSource(std::move(tokens), "counting");
}

TEST(RandomSampler, ABatchDependsOnSeedAndNumberOnly) {
  const RandomSampler a(100000, 64, 5), b(100000, 64, 5), other(100000, 64, 6);
  const auto tenth = draw(a, 10, 12);
  draw(a, 3, 12);
  EXPECT_EQ(draw(a, 10, 12), tenth);
  EXPECT_EQ(draw(b, 10, 12), tenth);
  EXPECT_NE(draw(a, 11, 12), tenth);
  EXPECT_NE(draw(other, 10, 12), tenth);
}

TEST(RandomSampler, RowsAreConsecutiveDraws) {
  const RandomSampler sampler(100000, 64, 5);
  auto joined = draw(sampler, 0, 4);
  const auto second = draw(sampler, 1, 4);
  joined.insert(joined.end(), second.begin(), second.end());
  EXPECT_EQ(draw(sampler, 0, 8), joined);
}

TEST(RandomSampler, EveryStartIsReachedEquallyOften) {
  // 10 tokens and T = 7 leave the starts 0, 1, 2 and nothing else.
  const RandomSampler sampler(10, 7, 1);
  std::vector<int64_t> counts(3);
  for (uint64_t k = 0; k < 3000; ++k) {
    for (const int64_t start : draw(sampler, k, 10)) ++counts.at(static_cast<size_t>(start));
  }
  // 30000 draws at p = 1/3: standard deviation 82; five of them are crossed once in 2 million.
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), 10000.0, 410.0);
}

TEST(RandomSampler, ReachesBeyond32Bits) {
  const RandomSampler sampler(int64_t{1} << 40, 1024, 1);
  int64_t largest = 0;
  for (const int64_t start : draw(sampler, 0, 100)) {
    EXPECT_LT(start, (int64_t{1} << 40) - 1024);
    largest = std::max(largest, start);
  }
  EXPECT_GT(largest, int64_t{1} << 39);  // all 100 in the lower half: once in 2^100
}

TEST(RandomSampler, RefusesACorpusWithoutAWindow) {
  EXPECT_NO_THROW(RandomSampler(9, 8, 1));
  expect_error([] { RandomSampler(8, 8, 1); }, {"8 tokens", "context + 1 = 9"});
  expect_error([] { RandomSampler(8, 0, 1); }, {"context is 0"});
}

TEST(Windows, TargetsAreOneFurther) {
  const TokenSource source = counting(20);
  const std::vector<int64_t> starts{3, 15};
  std::vector<int32_t> tokens(8), targets(8);
  copy_windows(source, starts, 4, tokens.data(), targets.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{3, 4, 5, 6, 15, 16, 17, 18}));
  EXPECT_EQ(targets, (std::vector<int32_t>{4, 5, 6, 7, 16, 17, 18, 19}));
}

TEST(Windows, SequentialOnesTileTheCorpus) {
  EXPECT_EQ(sequential_window_count(0, 4), 0);
  EXPECT_EQ(sequential_window_count(4, 4), 0);  // no target for the last token
  EXPECT_EQ(sequential_window_count(5, 4), 1);
  EXPECT_EQ(sequential_window_count(12, 4), 2);
  EXPECT_EQ(sequential_window_count(13, 4), 3);

  const TokenSource source = counting(13);
  std::vector<int32_t> tokens(12), targets(12), expected(12);
  copy_sequential_windows(source, 0, 1, 4, tokens.data(), targets.data());
  copy_sequential_windows(source, 1, 2, 4, tokens.data() + 4, targets.data() + 4);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(tokens, expected);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(targets, expected);
}

}  // namespace
}  // namespace quern
