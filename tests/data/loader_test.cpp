#include "data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>

#include "support/files.h"

namespace quern {
namespace {

using testing_support::expect_error;

constexpr int64_t kRows = 3, kContext = 5;
constexpr size_t kCount = kRows * kContext;

TokenSource corpus() {
  std::vector<uint16_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), uint16_t{0});
  return TokenSource(std::move(tokens), "corpus");
}

std::shared_ptr<void> host_memory(int64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

std::vector<int32_t> values(const int32_t* data) {
  return {data, data + kCount};
}

struct Expected {
  std::vector<int32_t> tokens, targets;
};

Expected directly(uint64_t seed, uint64_t k) {
  Expected expected{std::vector<int32_t>(kCount), std::vector<int32_t>(kCount)};
  std::vector<int64_t> starts(kRows);
  RandomSampler(1000, kContext, seed).draw(k * kRows, starts);
  copy_windows(corpus(), starts, kContext, expected.tokens.data(), expected.targets.data());
  return expected;
}

TEST(BatchLoader, GivesWhatTheSamplerGives) {
  BatchLoader loader(corpus(), kRows, kContext, {.seed = 9}, host_memory);
  for (uint64_t k = 0; k < 50; ++k) {
    const Batch batch = loader.next();
    EXPECT_EQ(values(batch.tokens), directly(9, k).tokens);
    EXPECT_EQ(values(batch.targets), directly(9, k).targets);
  }
}

TEST(BatchLoader, PermutesAndMasksWhenAsked) {
  const BatchOptions options{Sampling::permutation, 17};
  std::vector<int64_t> starts(kRows);
  const PermutationSampler sampler(1000, kContext, 9);
  int64_t masked = 0;
  for (uint64_t k = 0; k < 150; ++k) {  // two epochs of 199 windows
    BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .draw = k * kRows}, host_memory,
                       options);
    const Batch batch = loader.next();
    sampler.draw(k * kRows, starts);
    for (size_t i = 0; i < kCount; ++i) {
      const auto token =
          static_cast<int32_t>(starts[i / kContext] + static_cast<int64_t>(i) % kContext);
      EXPECT_EQ(batch.tokens[i], token);
      EXPECT_EQ(batch.targets[i], token == 17 ? kNoTarget : token + 1);
      masked += token == 17;
    }
  }
  EXPECT_GE(masked, 2);
}

// Steps of six batches on one, two or three ranks. A resumed run may begin its steps at any window.
TEST(BatchLoader, CountsTheTargetsOfTheWholeStep) {
  constexpr uint64_t kPerStep = 6;
  const RandomSampler sampler(1000, kContext, 9);
  for (const auto& [ranks, begin] : {std::pair{1, 18}, {2, 0}, {2, 7}, {3, 18}, {3, 100}}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const BatchOptions options{.document_end = 500,
                                 .rank = static_cast<uint64_t>(rank),
                                 .ranks = static_cast<uint64_t>(ranks),
                                 .per_step = kPerStep};
      auto first = static_cast<uint64_t>(begin);
      BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .draw = first}, host_memory,
                         options);
      std::vector<int64_t> starts(kPerStep * kRows);
      std::vector<int32_t> tokens(kPerStep * kCount), targets(tokens.size());
      int64_t masked = 0;
      for (int step = 0; step < 60; ++step, first += kPerStep * kRows) {
        sampler.draw(first, starts);
        copy_windows(corpus(), starts, kContext, tokens.data(), targets.data());
        const int64_t counted = std::ssize(tokens) - std::ranges::count(tokens, 500);
        for (size_t k = options.rank; k < kPerStep; k += options.ranks) {
          const Batch batch = loader.next();
          EXPECT_EQ(batch.counted, counted);
          EXPECT_TRUE(std::equal(batch.tokens, batch.tokens + kCount, &tokens[k * kCount]));
        }
        masked += std::ssize(tokens) - counted;
      }
      EXPECT_GT(masked, 0);
    }
  }
}

TEST(BatchLoader, CountsNothingWhereAllCountOrOneBatchIsTheStep) {
  for (const BatchOptions& options :
       {BatchOptions{.per_step = 6}, BatchOptions{.document_end = 500}}) {
    BatchLoader loader(corpus(), kRows, kContext, {}, host_memory, options);
    EXPECT_FALSE(loader.next().counted);
  }
}

TEST(BatchLoader, BeginsWithAnyBatch) {
  BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .draw = 7 * kRows}, host_memory);
  EXPECT_EQ(values(loader.next().tokens), directly(9, 7).tokens);
}

TEST(BatchLoader, TheLastTwoBatchesStayAsTheyAre) {
  BatchLoader loader(corpus(), kRows, kContext, {.seed = 9}, host_memory);
  Batch previous = loader.next();
  for (uint64_t k = 1; k < 200; ++k) {
    const Batch batch = loader.next();
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // lets the thread run ahead
    EXPECT_EQ(values(previous.tokens), directly(9, k - 1).tokens);
    previous = batch;
  }
}

TEST(BatchLoader, PreparesAheadButNotWithoutEnd) {
  std::atomic<int> filled = 0;
  const auto fill = [&](uint64_t, int32_t*, int32_t*) {
    ++filled;
    return std::nullopt;
  };
  BatchLoader loader(fill, kRows, kContext, host_memory);
  for (int i = 0; i < 500 && filled < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(filled, 2);  // before the first next()
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(filled, 2);
}

TEST(BatchLoader, RethrowsWhatTheThreadThrew) {
  const auto fill = [](uint64_t k, int32_t* tokens, int32_t*) {
    QUERN_CHECK(k != 3, "batch 3 is bad luck");
    tokens[0] = static_cast<int32_t>(k);
    return std::nullopt;
  };
  BatchLoader loader(fill, kRows, kContext, host_memory);
  for (int k = 0; k < 3; ++k) EXPECT_EQ(loader.next().tokens[0], k);  // before the error
  expect_error([&] { loader.next(); }, {"batch 3 is bad luck"});
  expect_error([&] { loader.next(); }, {"batch 3 is bad luck"});  // does not hang
}

TEST(BatchLoader, StopsInAnyState) {
  for (int consumed = 0; consumed < 5; ++consumed) {
    BatchLoader loader(corpus(), kRows, kContext, {}, host_memory);
    for (int i = 0; i < consumed; ++i) loader.next();
  }
}

TEST(BatchLoader, TakesAndReturnsTheMemoryItIsGiven) {
  int live = 0;
  int64_t bytes = 0;
  std::vector<std::byte> memory(100000);
  {
    const HostMemory allocator = [&](int64_t n) {
      ++live;
      bytes = n;
      return std::shared_ptr<void>(memory.data(), [&](void*) { --live; });
    };
    BatchLoader loader(corpus(), kRows, kContext, {}, allocator);
    const auto* data = reinterpret_cast<const std::byte*>(loader.next().targets);
    EXPECT_GE(data, memory.data());
    EXPECT_LE(data + kCount * sizeof(int32_t), memory.data() + bytes);
    EXPECT_EQ(live, 1);
  }
  EXPECT_EQ(live, 0);
}

TEST(BatchLoader, RefusesEmptyBatches) {
  expect_error([] { BatchLoader(corpus(), 0, kContext, {}, host_memory); }, {"(0, 5)"});
  expect_error([] { BatchLoader(corpus(), 1, 1000, {}, host_memory); }, {"1000 tokens", "1001"});
}

}  // namespace
}  // namespace quern
