// Memory used by work on a second stream is reused only after that work. The streams are queues
// that run on request, in the order that reveals a missing wait: the home stream as far as it can
// go, then the others.
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/files.h"
#include "tensor/allocator.h"

namespace quern {
namespace {

using namespace testing_support;
using kernels::cuda::Stream;

// Host memory that lives until its source ends: a test may end with allocations of its own.
class OwnedMemory : public MemorySource {
 public:
  void* allocate(int64_t bytes) override {
    auto& block = blocks_.emplace_back(std::make_unique<char[]>(static_cast<size_t>(bytes)));
    return block.get();
  }
  void release(void* data) noexcept override {
    std::erase_if(blocks_, [&](const auto& block) { return block.get() == data; });
  }
  std::string name() const override { return "cpu"; }

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
};

// Streams whose work waits until run().
class FakeStreams {
 public:
  // A task returns false while it cannot run yet.
  using Task = std::function<bool()>;

  void put(Stream stream, const std::function<void()>& work) {
    put_task(stream, [work] {
      work();
      return true;
    });
  }
  void put_task(Stream stream, Task task) { queues_[stream.handle].push_back(std::move(task)); }

  // Streams are ordered by address: the home stream first. Each runs until it must wait.
  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [handle, queue] : queues_) {
        while (!queue.empty() && queue.front()()) {
          queue.pop_front();
          moved = true;
        }
      }
    }
  }
  bool idle() const {
    for (const auto& [handle, queue] : queues_) {
      if (!queue.empty()) return false;
    }
    return true;
  }

  int events = 0, records = 0, waits = 0;

 private:
  std::map<void*, std::deque<Task>> queues_;
};

// Like a CUDA event: a wait is for the latest record before it.
class FakeEvent : public StreamEvent {
 public:
  explicit FakeEvent(FakeStreams& streams) : streams_(streams) { ++streams_.events; }
  void record(Stream stream) override {
    ++streams_.records;
    reached_ = std::make_shared<bool>(false);
    streams_.put(stream, [reached = reached_] { *reached = true; });
  }
  void wait(Stream stream) override {
    ++streams_.waits;
    streams_.put_task(stream, [reached = reached_] { return *reached; });
  }
  bool is_done() const override { return *reached_; }

 private:
  FakeStreams& streams_;
  std::shared_ptr<bool> reached_;
};

int places[3];
const Stream kHome{&places[0]}, kSide{&places[1]}, kOther{&places[2]};

struct StreamsTest : testing::Test {
  FakeStreams streams;
  std::shared_ptr<Allocator> allocator =
      std::make_shared<Allocator>(std::make_unique<OwnedMemory>(), kHome,
                                  [this] { return std::make_unique<FakeEvent>(streams); });

  // Later work on `stream` runs after all earlier work of the home stream.
  void follow_home(Stream stream) {
    FakeEvent event(streams);
    event.record(kHome);
    event.wait(stream);
    streams.events = streams.records = streams.waits = 0;
  }
  // Puts the write of a value on the home stream.
  int* written(int value, int64_t bytes = 1000) {
    auto* const data = static_cast<int*>(allocator->allocate(bytes, "x"));
    streams.put(kHome, [=] { *data = value; });
    return data;
  }
  // Puts a read on `stream`; it sees the written value unless the memory was reused.
  void read(Stream stream, const int* data, int& seen) {
    streams.put(stream, [data, &seen] { seen = *data; });
  }
};

TEST_F(StreamsTest, WithoutARecordedUseTheStreamsRace) {
  int seen = 0;
  int* const first = written(1);
  follow_home(kSide);
  read(kSide, first, seen);
  allocator->release(first);
  ASSERT_EQ(written(2), first) << "the memory is used again at once";
  streams.run();
  EXPECT_EQ(seen, 2) << "these fake streams are to show the race";
}

TEST_F(StreamsTest, MemoryIsHandedOutBehindItsUseOnAnotherStream) {
  int seen = 0;
  int* const first = written(1);
  follow_home(kSide);
  read(kSide, first, seen);
  allocator->record_use(first, kSide);
  allocator->release(first);
  ASSERT_EQ(written(2), first) << "the choice of memory does not depend on the streams' progress";
  streams.run();
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(streams.idle());
}

TEST_F(StreamsTest, AUseMayBeRecordedLongBeforeTheRelease) {
  int seen = 0;
  int* const first = written(1);
  follow_home(kSide);
  read(kSide, first, seen);
  allocator->record_use(first, kSide);
  int* const between = written(5);
  EXPECT_EQ(streams.waits, 0) << "the memory handed out was not used";
  allocator->release(between);
  allocator->release(first);
  written(2, 2048);
  streams.run();
  EXPECT_EQ(seen, 1);
}

TEST_F(StreamsTest, NothingIsWaitedForButTheUse) {
  int seen = 0;
  int* const first = written(1);
  follow_home(kSide);
  read(kSide, first, seen);
  allocator->record_use(first, kSide);
  bool open = false;
  streams.put_task(kSide, [&] { return open; });  // later work, which takes its time
  allocator->release(first);
  int second = 0;
  read(kHome, written(2), second);
  streams.run();
  EXPECT_EQ(seen, 1);
  EXPECT_EQ(second, 2) << "the home stream waited for work that does not use the memory";
  open = true;
  streams.run();
}

TEST_F(StreamsTest, TheLastUseOfAStreamCounts) {
  int early = 0, late = 0;
  int* const first = written(1);
  follow_home(kSide);
  read(kSide, first, early);
  allocator->record_use(first, kSide);
  read(kSide, first, late);
  allocator->record_use(first, kSide);
  EXPECT_EQ(streams.events, 1) << "one event for a stream and an allocation";
  allocator->release(first);
  written(2);
  EXPECT_EQ(streams.waits, 1);
  streams.run();
  EXPECT_EQ(early, 1);
  EXPECT_EQ(late, 1);
}

TEST_F(StreamsTest, MergedMemoryWaitsForTheUsesOfAllItsParts) {
  int a = 0, b = 0, c = 0;
  int *const first = written(1), *const second = written(2), *const third = written(3);
  follow_home(kSide);
  follow_home(kOther);
  read(kSide, first, a);
  read(kOther, second, b);
  read(kSide, third, c);
  allocator->record_use(first, kSide);
  allocator->record_use(second, kOther);
  allocator->record_use(third, kSide);
  for (int* const data : {first, second, third}) allocator->release(data);
  auto* const all = static_cast<int*>(allocator->allocate(3 * 1024, "all"));
  ASSERT_EQ(all, first);
  EXPECT_EQ(streams.waits, 3);
  streams.put(kHome, [=] { *first = *second = *third = 9; });
  streams.run();
  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 2);
  EXPECT_EQ(c, 3);
}

TEST_F(StreamsTest, APartOfUsedMemoryWaitsAndTheRestNeedNot) {
  int seen = 0;
  int* const first = written(1, 8192);
  follow_home(kSide);
  streams.put(kSide, [=, &seen] { seen = first[1024]; });  // in the second half
  streams.put(kHome, [=] { first[1024] = 1; });
  allocator->record_use(first, kSide);
  allocator->release(first);
  EXPECT_EQ(allocator->allocate(4096, "first half"), first);
  EXPECT_EQ(streams.waits, 1);
  EXPECT_EQ(allocator->allocate(4096, "second half"), first + 1024);
  EXPECT_EQ(streams.waits, 1) << "the home stream is behind that use already";
  streams.run();
  EXPECT_TRUE(streams.idle());
}

TEST_F(StreamsTest, OneStreamCostsNoEvents) {
  for (int i = 0; i < 10; ++i) {
    void* const data = allocator->allocate(1000, "x");
    if (i % 2 == 0) allocator->record_use(data, kHome);
    allocator->release(data);
  }
  allocator->wait_for_uses();
  allocator->release_cached();
  EXPECT_EQ(streams.events + streams.records + streams.waits, 0);
}

// During a capture and at each replay, waiting for work outside the graph is impossible.
TEST_F(StreamsTest, AfterWaitingForAllUsesNoneIsWaitedForAgain) {
  int seen = 0;
  const std::shared_ptr<MemoryPool> pool = allocator->make_pool();
  int* inside = nullptr;
  {
    const PoolScope scope(*allocator, pool);
    inside = written(1);
  }
  int* const alive = written(3);
  follow_home(kSide);
  read(kSide, inside, seen);
  allocator->record_use(inside, kSide);
  allocator->record_use(alive, kSide);
  allocator->release(inside);
  allocator->wait_for_uses();
  EXPECT_EQ(streams.waits, 2);
  streams.put(kHome, [=] { *inside = 2; });  // as a replay: it writes to the captured address
  {
    const PoolScope scope(*allocator, pool);
    EXPECT_EQ(allocator->allocate(1000, "captured"), inside);
  }
  allocator->release(alive);
  EXPECT_EQ(allocator->allocate(1000, "y"), alive);
  EXPECT_EQ(streams.waits, 2);
  streams.run();
  EXPECT_EQ(seen, 1);
}

TEST_F(StreamsTest, UsesOfAnAbandonedCaptureAreForgotten) {
  void* const data = allocator->allocate(1000, "x");
  allocator->record_use(data, kSide);
  allocator->release(data);
  allocator->forget_uses();
  EXPECT_EQ(allocator->allocate(1000, "y"), data);
  EXPECT_EQ(streams.waits, 0);
}

// The source's release() waits for the device, so another segment at this address is free of uses.
TEST_F(StreamsTest, MemoryThatGoesBackToTheSourceTakesItsUsesAlong) {
  void* const small = allocator->allocate(1000, "small");
  void* const large = allocator->allocate(int64_t{40} << 20, "large");
  for (void* const data : {small, large}) allocator->record_use(data, kSide);
  allocator->release(large);
  allocator->release_cached();
  allocator->wait_for_uses();
  EXPECT_EQ(streams.waits, 1) << "the small allocation's";
}

TEST_F(StreamsTest, OnlyAllocationsHaveUses) {
  int elsewhere = 0;
  expect_error([&] { allocator->record_use(&elsewhere, kSide); }, {"record_use", "not"});
  void* const data = allocator->allocate(1000, "x");
  allocator->release(data);
  expect_error([&] { allocator->record_use(data, kSide); }, {"record_use", "not"});
}

TEST(AllocatorWithoutEvents, RecordsNoUses) {
  const auto allocator = std::make_shared<Allocator>(std::make_unique<OwnedMemory>());
  void* const data = allocator->allocate(1000, "x");
  allocator->record_use(data, kSide);
  allocator->release(data);
  EXPECT_EQ(allocator->allocate(1000, "y"), data);
}

TEST_F(StreamsTest, AUseOfLaterMemoryIsNotWaitedFor) {
  int* const first = written(1);
  int* const second = written(2);
  ASSERT_LT(first, second);
  follow_home(kSide);
  allocator->record_use(second, kSide);
  allocator->release(first);
  EXPECT_EQ(written(3), first);
  EXPECT_EQ(streams.waits, 0);
  allocator->wait_for_uses();
  EXPECT_EQ(streams.waits, 1);
}

}  // namespace
}  // namespace quern
