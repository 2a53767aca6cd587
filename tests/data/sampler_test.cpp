#include "data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "support/files.h"

namespace quern {
namespace {

using testing_support::expect_error;

std::vector<int64_t> draw(const RandomSampler& sampler, uint64_t batch, size_t rows) {
  std::vector<int64_t> starts(rows);
  sampler.draw(batch * rows, starts);
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
  // 10 tokens and T = 7 allow only the starts 0, 1, 2.
  const RandomSampler sampler(10, 7, 1);
  std::vector<int64_t> counts(3);
  for (uint64_t k = 0; k < 3000; ++k) {
    for (const int64_t start : draw(sampler, k, 10)) ++counts.at(static_cast<size_t>(start));
  }
  // 30000 draws at p = 1/3: standard deviation 82; five deviations are exceeded once in 2 million.
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

// The starts of an epoch's windows, in their order, drawn in batches of `rows`.
std::vector<int64_t> epochs(const PermutationSampler& sampler, uint64_t count, size_t rows) {
  std::vector<int64_t> all;
  const uint64_t draws = count * static_cast<uint64_t>(sampler.windows());
  for (uint64_t k = 0; k * rows < draws; ++k) {
    std::vector<int64_t> starts(rows);
    sampler.draw(k * rows, starts);
    all.insert(all.end(), starts.begin(), starts.end());
  }
  all.resize(draws);
  return all;
}

TEST(PermutationSampler, EachWindowOnceAnEpoch) {
  constexpr int64_t T = 8;
  for (const int64_t windows : {1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000}) {
    for (const int64_t rest : {0, 3}) {  // tokens beyond the windows
      const int64_t size = windows * T + 1 + rest;
      const PermutationSampler sampler(size, T, 5);
      ASSERT_EQ(sampler.windows(), windows);
      const std::vector<int64_t> drawn = epochs(sampler, 3, 7);  // batches span epochs
      for (uint64_t epoch = 0; epoch < 3; ++epoch) {
        const auto first = drawn.begin() + static_cast<int64_t>(epoch) * windows;
        std::vector<int64_t> starts(first, first + windows);
        std::sort(starts.begin(), starts.end());
        EXPECT_LE(starts.front(), rest);
        EXPECT_LE(starts.back() + T + 1, size);
        for (int64_t i = 0; i < windows; ++i) {
          EXPECT_EQ(starts[static_cast<size_t>(i)], starts.front() + i * T);
        }
      }
    }
  }
}

TEST(PermutationSampler, ABatchDependsOnSeedAndNumberOnly) {
  const PermutationSampler a(100000, 64, 5), b(100000, 64, 5), other(100000, 64, 6);
  std::vector<int64_t> first(12), second(12), others(12);
  a.draw(900, first);
  b.draw(3, second);
  b.draw(900, second);
  other.draw(900, others);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, others);
}

TEST(PermutationSampler, EpochsDiffer) {
  const PermutationSampler sampler(8001, 8, 5);
  const std::vector<int64_t> drawn = epochs(sampler, 2, 10);
  int64_t same = 0, in_order = 0;
  for (size_t i = 0; i < 1000; ++i) {
    same += drawn[i] == drawn[i + 1000];
    in_order += drawn[i] == static_cast<int64_t>(i) * 8;
  }
  // Two random orders agree in 1 position on average; in more than 10 once in 10^8.
  EXPECT_LE(same, 10);
  EXPECT_LE(in_order, 10);
}

TEST(PermutationSampler, EveryWindowComesEquallyOftenAtEveryPlace) {
  for (const int64_t windows : {2, 3, 5, 8}) {
    const PermutationSampler sampler(windows * 4 + 1, 4, 1);
    const uint64_t W = static_cast<uint64_t>(windows);
    std::vector<double> counts(W * W), pairs(W * W);
    constexpr int kEpochs = 8000;
    for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
      for (uint64_t i = 0; i < W; ++i) ++counts[i * W + sampler.permuted(epoch, i)];
      ++pairs[sampler.permuted(epoch, 0) * W + sampler.permuted(epoch, 1)];
    }
    // Chi-square over W^2 cells, or W (W - 1) for the first two positions. The statistic's standard
    // deviation is sqrt(2 degrees); seven deviations are exceeded less than once in 10^5.
    const auto chi_square = [](const std::vector<double>& found, double expected) {
      double sum = 0.0;
      for (const double n : found) sum += n > 0 ? (n - expected) * (n - expected) / expected : 0;
      return sum;
    };
    const double cells = static_cast<double>(W * W), apart = static_cast<double>(W * (W - 1));
    EXPECT_LT(chi_square(counts, kEpochs / static_cast<double>(W)),
              cells + 7 * std::sqrt(2 * cells))
        << windows;
    EXPECT_LT(chi_square(pairs, kEpochs / apart), apart + 7 * std::sqrt(2 * apart)) << windows;
    for (uint64_t i = 0; i < W; ++i) EXPECT_EQ(pairs[i * W + i], 0.0);
    for (const double n : counts) EXPECT_GT(n, 0.0);
  }
}

TEST(PermutationSampler, EveryOffsetIsReached) {
  const PermutationSampler sampler(3 * 8 + 1 + 5, 8, 1);
  std::set<int64_t> offsets;
  for (uint64_t epoch = 0; epoch < 200; ++epoch) offsets.insert(sampler.offset(epoch));
  EXPECT_EQ(offsets, (std::set<int64_t>{0, 1, 2, 3, 4, 5}));  // one missed: once in 10^15
}

TEST(PermutationSampler, ReachesBeyond32Bits) {
  const PermutationSampler sampler(int64_t{1} << 40, 16, 1);
  std::set<int64_t> seen;
  int64_t largest = 0;
  for (uint64_t k = 0; k < 10; ++k) {
    std::vector<int64_t> starts(10);
    sampler.draw(10 * k, starts);
    for (const int64_t start : starts) {
      EXPECT_LE(start + 17, int64_t{1} << 40);
      EXPECT_TRUE(seen.insert(start).second);
      largest = std::max(largest, start);
    }
  }
  EXPECT_GT(largest, int64_t{1} << 39);  // all 100 in the lower half: once in 2^100
}

TEST(PermutationSampler, RefusesACorpusWithoutAWindow) {
  EXPECT_NO_THROW(PermutationSampler(9, 8, 1));
  expect_error([] { PermutationSampler(8, 8, 1); }, {"8 tokens", "context + 1 = 9"});
  expect_error([] { PermutationSampler(8, 0, 1); }, {"context is 0"});
}

TEST(Windows, TargetsAfterTheEndOfADocumentAreMasked) {
  const std::vector<int32_t> tokens{9, 1, 2, 9, 9, 3};
  std::vector<int32_t> targets{1, 2, 9, 9, 3, 4};
  EXPECT_EQ(mask_document_starts(tokens, targets, 9), 3);
  EXPECT_EQ(targets, (std::vector<int32_t>{kNoTarget, 2, 9, kNoTarget, kNoTarget, 4}));
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
  copy_windows(source, std::vector<int64_t>{0, 4, 8}, 4, tokens.data(), targets.data());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(tokens, expected);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(targets, expected);
}

}  // namespace
}  // namespace quern
