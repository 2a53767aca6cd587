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

std::vector<int32_t> values(const int32_t* data) {
  return {data, data + kCount};
}

struct Expected {
  std::vector<int32_t> tokens, targets;
};

Expected directly(uint64_t seed, uint64_t k) {
  Expected expected{std::vector<int32_t>(kCount), std::vector<int32_t>(kCount)};
  std::vector<int64_t> starts(kRows);
  RandomSampler(1000, kContext, seed).draw(k, starts);
  copy_windows(corpus(), starts, kContext, expected.tokens.data(), expected.targets.data());
  return expected;
}

TEST(BatchLoader, GivesWhatTheSamplerGives) {
  BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .batch = 0});
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
    BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .batch = k}, ordinary_host_memory,
                       options);
    const Batch batch = loader.next();
    sampler.draw(k, starts);
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

// Steps of six batches on one, two or three ranks, from the second step on.
TEST(BatchLoader, CountsTheTargetsOfTheWholeStep) {
  constexpr uint64_t kPerStep = 6;
  for (const uint64_t ranks : {1, 2, 3}) {
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      const BatchOptions options{.document_end = 500, .stride = ranks, .per_step = kPerStep};
      BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .batch = kPerStep + rank},
                         ordinary_host_memory, options);
      int64_t masked = 0;
      for (uint64_t k = kPerStep + rank; k < 60 * kPerStep; k += ranks) {
        int64_t counted = 0;
        for (uint64_t i = 0; i < kPerStep; ++i) {
          const Expected batch = directly(9, k / kPerStep * kPerStep + i);
          counted += std::ssize(batch.tokens) - std::ranges::count(batch.tokens, 500);
        }
        EXPECT_EQ(loader.next().counted, counted);
        masked += kPerStep * kCount - static_cast<size_t>(counted);
      }
      EXPECT_GT(masked, 0);
    }
  }
}

TEST(BatchLoader, CountsNothingWhereAllCountOrOneBatchIsTheStep) {
  for (const BatchOptions& options :
       {BatchOptions{.per_step = 6}, BatchOptions{.document_end = 500}}) {
    BatchLoader loader(corpus(), kRows, kContext, {}, ordinary_host_memory, options);
    EXPECT_FALSE(loader.next().counted);
  }
}

TEST(BatchLoader, BeginsWithAnyBatch) {
  BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .batch = 7});
  EXPECT_EQ(values(loader.next().tokens), directly(9, 7).tokens);
}

TEST(BatchLoader, TheLastTwoBatchesStayAsTheyAre) {
  BatchLoader loader(corpus(), kRows, kContext, {.seed = 9, .batch = 0});
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
  BatchLoader loader(fill, kRows, kContext, {});
  for (int i = 0; i < 500 && filled < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(filled, 2);  // before the first next()
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(filled, 2);
}

TEST(BatchLoader, RethrowsWhatTheThreadThrew) {
  const auto fill = [](uint64_t k, int32_t* tokens, int32_t*) {
    QUERN_CHECK(k != 13, "batch 13 is bad luck");
    tokens[0] = static_cast<int32_t>(k);
    return std::nullopt;
  };
  BatchLoader loader(fill, kRows, kContext, {.seed = 1, .batch = 10});
  for (int k = 10; k < 13; ++k) EXPECT_EQ(loader.next().tokens[0], k);  // before the error
  expect_error([&] { loader.next(); }, {"batch 13 is bad luck"});
  expect_error([&] { loader.next(); }, {"batch 13 is bad luck"});  // does not hang
}

TEST(BatchLoader, StopsInAnyState) {
  for (int consumed = 0; consumed < 5; ++consumed) {
    BatchLoader loader(corpus(), kRows, kContext, {});
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
  expect_error([] { BatchLoader(corpus(), 0, kContext, {}); }, {"(0, 5)"});
  expect_error([] { BatchLoader(corpus(), 1, 1000, {}); }, {"1000 tokens", "1001"});
}

}  // namespace
}  // namespace quern
