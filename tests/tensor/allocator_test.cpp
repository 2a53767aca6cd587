// The caching allocator on a source that counts, and can run out.
#include "tensor/allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <map>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr int64_t kMiB = int64_t{1} << 20;

struct Counters {
  ~Counters() {  // frees a test's remaining allocations
    for (const auto& [data, bytes] : segments) std::free(data);
  }

  int64_t capacity = int64_t{1} << 30;
  int64_t held = 0;
  int asked = 0;
  std::map<void*, int64_t> segments;
};

class FakeMemory : public MemorySource {
 public:
  explicit FakeMemory(std::shared_ptr<Counters> counters) : counters_(std::move(counters)) {}
  void* allocate(int64_t bytes) override {
    ++counters_->asked;
    if (counters_->held + bytes > counters_->capacity) return nullptr;
    void* data = std::aligned_alloc(256, static_cast<size_t>(bytes));
    counters_->held += bytes;
    counters_->segments[data] = bytes;
    return data;
  }
  void release(void* data) noexcept override {
    counters_->held -= counters_->segments[data];
    counters_->segments.erase(data);
    std::free(data);
  }
  std::string name() const override { return "fake:0"; }

 private:
  std::shared_ptr<Counters> counters_;
};

struct AllocatorTest : testing::Test {
  std::shared_ptr<Counters> source = std::make_shared<Counters>();
  std::shared_ptr<Allocator> allocator =
      std::make_shared<Allocator>(std::make_unique<FakeMemory>(source));
};

TEST_F(AllocatorTest, AlignedEvenForNothing) {
  for (const int64_t bytes : {0, 1, 255, 256, 257, 5000000}) {
    void* data = allocator->allocate(bytes, "x");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0u) << bytes;
  }
  EXPECT_EQ(allocator->stats().allocations, 6);
}

TEST_F(AllocatorTest, AFreedBlockIsUsedAgain) {
  void* first = allocator->allocate(1000, "x");
  allocator->release(first);
  EXPECT_EQ(allocator->allocate(900, "y"), first);
  EXPECT_EQ(source->asked, 1);
}

TEST_F(AllocatorTest, SmallBlocksSplitOneSegment) {
  auto* a = static_cast<char*>(allocator->allocate(1000, "a"));
  auto* b = static_cast<char*>(allocator->allocate(1000, "b"));
  EXPECT_EQ(b - a, 1024);
  EXPECT_EQ(source->asked, 1);
}

TEST_F(AllocatorTest, NeighboursMergeInAnyOrder) {
  const int64_t third = kMiB / 2;
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocator->allocate(third, "third"));
  ASSERT_EQ(source->asked, 1) << "four halves of a MiB fill one segment";
  for (const size_t i : {1u, 3u, 0u, 2u}) allocator->release(blocks[i]);
  EXPECT_EQ(allocator->allocate(4 * third, "all"), blocks[0]);
  EXPECT_EQ(source->asked, 1);
}

TEST_F(AllocatorTest, SegmentsDoNotMergeWithEachOther) {
  void* a = allocator->allocate(20 * kMiB, "a");
  void* b = allocator->allocate(20 * kMiB, "b");
  allocator->release(a);
  allocator->release(b);
  allocator->allocate(40 * kMiB, "c");
  EXPECT_EQ(source->asked, 3);
}

TEST_F(AllocatorTest, BestFitLeavesTheLargeBlock) {
  void* large = allocator->allocate(20 * kMiB, "large");
  void* small = allocator->allocate(1000, "small");
  allocator->release(large);
  allocator->release(small);
  EXPECT_EQ(allocator->allocate(500, "x"), small);
  EXPECT_EQ(allocator->allocate(20 * kMiB, "y"), large);
}

TEST_F(AllocatorTest, StatisticsCountBytesAsked) {
  void* a = allocator->allocate(1000, "a");
  void* b = allocator->allocate(3000, "b");
  MemoryStats stats = allocator->stats();
  EXPECT_EQ(stats.allocated, 4000);
  EXPECT_EQ(stats.allocations, 2);
  EXPECT_EQ(stats.reserved, source->held);
  EXPECT_EQ(stats.segments, 1);
  allocator->release(b);
  EXPECT_EQ(allocator->stats().allocated, 1000);
  EXPECT_EQ(allocator->stats().peak_allocated, 4000);
  allocator->reset_peak();
  EXPECT_EQ(allocator->stats().peak_allocated, 1000);
  const std::vector<Allocation> live = allocator->live();
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].data, a);
  EXPECT_STREQ(live[0].name, "a");
}

TEST_F(AllocatorTest, LiveIsSortedBySize) {
  for (const int64_t bytes : {10, 3000, 200}) allocator->allocate(bytes, "x");
  std::vector<int64_t> sizes;
  for (const Allocation& a : allocator->live()) sizes.push_back(a.bytes);
  EXPECT_EQ(sizes, (std::vector<int64_t>{3000, 200, 10}));
}

TEST_F(AllocatorTest, ReleaseCachedGivesBackFreeSegmentsAlone) {
  void* kept = allocator->allocate(1000, "kept");
  allocator->release(allocator->allocate(20 * kMiB, "gone"));
  allocator->release_cached();
  EXPECT_EQ(allocator->stats().segments, 1);
  EXPECT_EQ(allocator->stats().reserved, source->held);
  EXPECT_LE(source->held, 2 * kMiB);
  allocator->release(kept);
  allocator->release_cached();
  EXPECT_EQ(source->held, 0);
}

TEST_F(AllocatorTest, ACrowdedCacheIsGivenBackBeforeGivingUp) {
  source->capacity = 50 * kMiB;
  allocator->release(allocator->allocate(40 * kMiB, "before"));
  EXPECT_NO_THROW(allocator->allocate(45 * kMiB, "after"));
}

TEST_F(AllocatorTest, OutOfMemoryNamesWhoHoldsWhat) {
  source->capacity = 64 * kMiB;
  for (int i = 0; i < 3; ++i) allocator->allocate(8 * kMiB, "scores");
  allocator->allocate(20 * kMiB, "logits");
  try {
    allocator->allocate(100 * kMiB, "gradient");
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    const std::string message = error.what();
    const size_t scores = message.find("24.0 MiB  scores (3 tensors)");
    const size_t logits = message.find("20.0 MiB  logits");
    EXPECT_NE(message.find("fake:0: gradient asked for 100.0 MiB"), std::string::npos) << message;
    EXPECT_NE(scores, std::string::npos) << message;
    EXPECT_NE(logits, std::string::npos) << message;
    EXPECT_LT(scores, logits) << "the largest comes first";
    EXPECT_NE(message.find("Lower batch"), std::string::npos) << message;
  }
  EXPECT_NO_THROW(allocator->allocate(1000, "small")) << "still usable";
}

TEST_F(AllocatorTest, NegativeSizeIsAnError) {
  expect_error([&] { allocator->allocate(-1, "x"); }, {"x", "-1"});
}

TEST_F(AllocatorTest, APoolIsNotSharedAndGoesWithItsLastAllocation) {
  allocator->release(allocator->allocate(1000, "cached"));
  std::shared_ptr<MemoryPool> pool = allocator->make_pool();
  allocator->begin_pool(pool);
  void* inside = allocator->allocate(1000, "captured");
  allocator->end_pool();
  EXPECT_EQ(allocator->stats().segments, 2) << "the pool does not take cached memory";
  void* outside = allocator->allocate(1000, "outside");
  EXPECT_NE(inside, outside);

  allocator->release(inside);
  EXPECT_NE(allocator->allocate(1000, "another"), inside) << "nor is its free memory taken";
  allocator->begin_pool(pool);
  void* again = allocator->allocate(1000, "replayed");
  allocator->end_pool();
  EXPECT_EQ(again, inside);

  pool.reset();
  EXPECT_EQ(allocator->stats().segments, 2) << "one allocation is still alive";
  allocator->release(again);
  EXPECT_EQ(allocator->stats().segments, 1);
  EXPECT_EQ(allocator->stats().reserved, source->held);
}

TEST_F(AllocatorTest, APoolKeepsItsMemoryWhenThereIsNoMore) {
  source->capacity = 64 * kMiB;
  const std::shared_ptr<MemoryPool> pool = allocator->make_pool();
  void* captured = nullptr;
  {
    const PoolScope scope(*allocator, pool);
    allocator->release(allocator->allocate(40 * kMiB, "launched"));
    allocator->release(allocator->allocate(50 * kMiB, "before a capture it may be given back"));
    allocator->pin_pool();
    captured = allocator->allocate(40 * kMiB, "captured");
    allocator->release(captured);
    EXPECT_THROW(allocator->allocate(60 * kMiB, "too much"), OutOfMemory);
  }
  EXPECT_THROW(allocator->allocate(50 * kMiB, "too much outside"), OutOfMemory);
  const PoolScope scope(*allocator, pool);
  EXPECT_EQ(allocator->allocate(40 * kMiB, "replayed"), captured);
}

TEST_F(AllocatorTest, AScopeWithoutAPoolUsesTheCommonMemory) {
  void* first = allocator->allocate(1000, "x");
  allocator->release(first);
  const PoolScope scope(*allocator, nullptr);
  EXPECT_EQ(allocator->allocate(1000, "y"), first);
}

TEST_F(AllocatorTest, APoolMayHaveASourceOfItsOwn) {
  const auto own = std::make_shared<Counters>();
  const auto own_memory = std::make_shared<FakeMemory>(own);
  std::shared_ptr<MemoryPool> pool = allocator->make_pool(own_memory);
  void* inside = nullptr;
  {
    const PoolScope scope(*allocator, pool);
    inside = allocator->allocate(40 * kMiB, "inside");
  }
  EXPECT_EQ(own->held, 40 * kMiB);
  EXPECT_EQ(source->held, 0);
  own->capacity = 40 * kMiB + 3 * kMiB / 2;
  {
    const PoolScope scope(*allocator, allocator->make_pool(own_memory));
    EXPECT_THROW(allocator->allocate(kMiB + 1, "less than a segment"), OutOfMemory);
  }
  void* outside = allocator->allocate(40 * kMiB, "outside");
  EXPECT_EQ(own->held, 40 * kMiB);
  allocator->release(outside);
  pool.reset();
  allocator->release(inside);
  EXPECT_EQ(own->held, 0);
}

TEST_F(AllocatorTest, CountsWhatIsAliveInAPool) {
  const std::shared_ptr<MemoryPool> pool = allocator->make_pool();
  allocator->allocate(1000, "elsewhere");
  void* inside = nullptr;
  {
    const PoolScope scope(*allocator, pool);
    inside = allocator->allocate(1000, "inside");
    allocator->allocate(1000, "left behind");
  }
  EXPECT_EQ(allocator->allocations_in(*pool), 2);
  allocator->release(inside);
  EXPECT_EQ(allocator->allocations_in(*pool), 1);
}

struct Recorder : AllocationObserver {
  std::vector<std::string> events;
  void on_allocate(const Allocation& a) override { events.push_back(cat("+", a.name, a.bytes)); }
  void on_release(const Allocation& a) override { events.push_back(cat("-", a.name, a.bytes)); }
  void on_out_of_memory(int64_t bytes, const char* name) override {
    events.push_back(cat("!", name, bytes));
  }
};

TEST_F(AllocatorTest, ObserverSeesEveryAllocation) {
  Recorder recorder;
  allocator->set_observer(&recorder);
  allocator->release(allocator->allocate(10, "x"));
  allocator->set_observer(nullptr);
  allocator->allocate(20, "unseen");
  EXPECT_EQ(recorder.events, (std::vector<std::string>{"+x10", "-x10"}));
}

struct SegmentRecorder : AllocationObserver {
  std::map<void*, int64_t> segments;
  void on_allocate(const Allocation& a) override {
    const auto after = segments.upper_bound(a.data);
    ASSERT_NE(after, segments.begin());
    const auto& [begin, bytes] = *std::prev(after);
    EXPECT_LE(static_cast<char*>(a.data) + a.bytes, static_cast<char*>(begin) + bytes);
  }
  void on_release(const Allocation&) override {}
  void on_reserve(void* data, int64_t bytes) override { segments[data] = bytes; }
  void on_unreserve(void* data, int64_t bytes) override {
    EXPECT_EQ(segments.at(data), bytes);
    segments.erase(data);
  }
};

TEST_F(AllocatorTest, ObserverKnowsTheSegmentsThatAllocationsLieIn) {
  SegmentRecorder recorder;
  allocator->set_observer(&recorder);
  void* small = allocator->allocate(100, "small");
  void* large = allocator->allocate(40 * kMiB, "large");
  const auto held = allocator->held_segments();
  EXPECT_EQ((std::map<void*, int64_t>{held.begin(), held.end()}), recorder.segments);
  EXPECT_EQ(recorder.segments, source->segments);
  EXPECT_EQ(recorder.segments.size(), 2u);
  allocator->release(large);
  allocator->release_cached();
  EXPECT_EQ(recorder.segments, source->segments);
  EXPECT_EQ(recorder.segments.size(), 1u);
  allocator->release(small);
  allocator->set_observer(nullptr);
}

TEST_F(AllocatorTest, ObserverSeesARefusalWhileAllIsStillAlive) {
  Recorder recorder;
  EXPECT_EQ(allocator->set_observer(&recorder), nullptr);
  source->capacity = 2 * kMiB;
  void* held = allocator->allocate(10, "x");
  EXPECT_THROW(allocator->allocate(3 * kMiB, "large"), OutOfMemory);
  allocator->release(held);
  EXPECT_EQ(recorder.events, (std::vector<std::string>{"+x10", "!large3145728", "-x10"}));
  EXPECT_EQ(allocator->set_observer(nullptr), &recorder) << "the one before";
}

TEST_F(AllocatorTest, ALimitIsNotPassed) {
  allocator->set_limit(40 * kMiB);
  void* first = allocator->allocate(20 * kMiB, "first");
  EXPECT_THROW(allocator->allocate(21 * kMiB, "too much"), OutOfMemory);
  allocator->release(first);
  EXPECT_NO_THROW(allocator->release(allocator->allocate(40 * kMiB, "what was cached is used")));
  EXPECT_LE(allocator->stats().reserved, 40 * kMiB);
  allocator->set_limit(0);
  EXPECT_NO_THROW(allocator->allocate(100 * kMiB, "without a limit"));
}

TEST_F(AllocatorTest, AStepRepeatedReservesNothingMore) {
  int64_t after_first = 0;
  for (int step = 0; step < 100; ++step) {
    std::vector<void*> blocks;
    for (const int64_t bytes : {100, 70000, 3000000, 20, 40000000}) {
      blocks.push_back(allocator->allocate(bytes, "activation"));
    }
    for (void* block : blocks) allocator->release(block);
    if (step == 0) after_first = allocator->stats().reserved;
  }
  EXPECT_EQ(allocator->stats().reserved, after_first);
}

TEST_F(AllocatorTest, EverythingGoesBackAtTheEnd) {
  allocator->release(allocator->allocate(5 * kMiB, "x"));
  allocator.reset();
  EXPECT_EQ(source->held, 0);
}

}  // namespace
}  // namespace quern
