#include "dist/collective_watch.h"

#include <gtest/gtest.h>

#include <vector>

namespace quern {
namespace {

using namespace std::chrono_literals;
using Clock = CollectiveWatch::Clock;

// The work of one stream: `enqueued` pieces, of which the first `done` are complete.
struct FakeStream {
  int64_t enqueued = 0, done = 0;
  int events = 0;

  class Event : public StreamEvent {
   public:
    explicit Event(FakeStream& stream) : stream_(stream) { ++stream.events; }
    void record(kernels::cuda::Stream /*stream*/) override { at_ = stream_.enqueued; }
    void wait(kernels::cuda::Stream /*stream*/) override {}
    bool is_done() const override { return stream_.done >= at_; }

   private:
    FakeStream& stream_;
    int64_t at_ = 0;
  };
};

class CollectiveWatchTest : public ::testing::Test {
 protected:
  void run(const char* what, Clock::time_point now) {
    watch.add("all_reduce", what, 4, now);
    ++stream.enqueued;
    watch.set_running({}, now);
  }
  void replay(Clock::time_point now) {
    ++stream.enqueued;
    watch.watch({}, now);
  }

  const Clock::time_point begin = Clock::now();
  FakeStream stream;
  CollectiveWatch watch{1000ms, [this] { return std::make_unique<FakeStream::Event>(stream); }};
};

TEST_F(CollectiveWatchTest, IsLateWhenACollectiveExceedsTheLimit) {
  EXPECT_FALSE(watch.is_late(begin + 1h));  // nothing runs
  run("the loss", begin + 1h);
  EXPECT_FALSE(watch.is_late(begin + 1h + 1000ms));
  EXPECT_TRUE(watch.is_late(begin + 1h + 1001ms));
  EXPECT_FALSE(watch.is_idle());
  stream.done = 1;
  EXPECT_FALSE(watch.is_late(begin + 1h + 1002ms));
  EXPECT_TRUE(watch.is_idle());
}

// The second collective's time begins when the first is seen complete.
TEST_F(CollectiveWatchTest, CountsFromTheLatestProgress) {
  run("a", begin);
  run("b", begin);
  stream.done = 1;
  EXPECT_FALSE(watch.is_late(begin + 900ms));
  EXPECT_FALSE(watch.is_late(begin + 1800ms));
  EXPECT_TRUE(watch.is_late(begin + 1901ms));
  EXPECT_EQ(watch.running(), "all_reduce of b");
}

// The host is 50 collectives ahead, so that every record is overwritten before it completes.
TEST_F(CollectiveWatchTest, AHostThatRunsAheadIsNotLate) {
  for (int i = 0; i < 2000; ++i) {
    const Clock::time_point now = begin + i * 10ms;
    run("a", now);
    stream.done = std::max<int64_t>(0, stream.enqueued - 50);
    ASSERT_FALSE(watch.is_late(now)) << i;
  }
  EXPECT_FALSE(watch.is_idle());
}

// Calling on while the device hangs does not postpone the limit.
TEST_F(CollectiveWatchTest, CallsDoNotPostponeTheLimit) {
  Clock::time_point now = begin;
  bool late = false;
  for (int i = 0; i < 30 && !late; ++i) {
    i % 2 == 0 ? replay(now) : run("a", now);
    now += 50ms;
    late = watch.is_late(now);
  }
  EXPECT_TRUE(late);
  EXPECT_LE(now, begin + 1100ms);
}

TEST_F(CollectiveWatchTest, WatchesReplays) {
  for (int step = 0; step < 100; ++step) {
    replay(begin + step * 100ms);
    EXPECT_FALSE(watch.is_late(begin + step * 100ms));
    stream.done = stream.enqueued;
  }
  EXPECT_FALSE(watch.is_late(begin + 10s));
  EXPECT_TRUE(watch.is_idle());
  replay(begin + 20s);
  EXPECT_TRUE(watch.is_late(begin + 22s));
  EXPECT_EQ(watch.running(), "work of the stream");
  EXPECT_LE(stream.events, 4);  // they are used again
}

// The host is a step ahead of the device. The first step, kernel by kernel, shows how long one
// takes; a step that then takes longer than that by more than the limit hangs.
TEST_F(CollectiveWatchTest, AStepMayTakeLongerThanTheLimit) {
  Clock::time_point now = begin;
  const auto runs_on = [&](std::chrono::milliseconds time) {
    for (const Clock::time_point end = now + time; now < end; now += 50ms) {
      if (watch.is_late(now)) return false;
    }
    return true;
  };
  for (int i = 0; i < 6; ++i) run("a", now);
  replay(now);  // its end
  for (int i = 0; i < 7; ++i, ++stream.done) ASSERT_TRUE(runs_on(300ms)) << i;
  replay(now);
  for (int step = 0; step < 20; ++step, ++stream.done) {
    replay(now);
    ASSERT_TRUE(runs_on(2100ms)) << step;
  }
  ASSERT_TRUE(runs_on(3000ms));
  EXPECT_FALSE(runs_on(300ms));
}

// A collective in which a rank waits long, as for another's file, is no piece.
TEST_F(CollectiveWatchTest, LongWaitsDoNotRaiseTheLimit) {
  watch.set_limit(1h);
  run("the file", begin);
  EXPECT_FALSE(watch.is_late(begin + 10min));
  stream.done = stream.enqueued;  // and nothing looks before the next step
  watch.set_limit(1s);
  replay(begin + 10min);
  EXPECT_FALSE(watch.is_late(begin + 10min + 100ms));
  stream.done = stream.enqueued;
  EXPECT_FALSE(watch.is_late(begin + 10min + 200ms));
  EXPECT_EQ(watch.allowed(), 1200ms);
  for (int i = 0; i < 100; ++i) {
    run("a count", begin + 11min);
    stream.done = stream.enqueued;
    EXPECT_FALSE(watch.is_late(begin + 11min + 100ms));
  }
  EXPECT_EQ(watch.allowed(), 1200ms);  // short collectives do not lower it either
}

// Pauses between steps do not count, and a long step is forgotten.
TEST_F(CollectiveWatchTest, LaterStepsSayHowLongOneMayTake) {
  Clock::time_point now = begin;
  for (int step = 0; step < 70; ++step) {
    replay(now);
    for (int i = 0; i < (step == 0 ? 18 : 2); ++i, now += 50ms) ASSERT_FALSE(watch.is_late(now));
    stream.done = stream.enqueued;
    for (int i = 0; i < 30; ++i, now += 50ms) ASSERT_FALSE(watch.is_late(now));
  }
  replay(now);
  EXPECT_FALSE(watch.is_late(now + 1100ms));
  EXPECT_TRUE(watch.is_late(now + 1200ms));
}

TEST_F(CollectiveWatchTest, ListsTheLatestSixteen) {
  EXPECT_EQ(watch.text(begin), "");
  for (int i = 1; i <= 20; ++i) run(i == 20 ? "the loss" : "a", begin + i * 1ms);
  stream.done = 18;
  watch.is_late(begin + 30ms);
  watch.add("gather", "the weights of block 3", 1 << 20, begin + 31ms);
  watch.set_captured();
  watch.add("barrier", "the end", 4, begin + 32ms);
  const std::string text = watch.text(begin + 2351ms);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 17);
  EXPECT_TRUE(
      text.starts_with("\nThe latest collectives of this rank:\n  #7 all_reduce of a, 4 bytes, "
                       "2.3 s ago: complete\n"))
      << text;
  EXPECT_NE(text.find("#18 all_reduce of a, 4 bytes, 2.3 s ago: complete\n"), std::string::npos);
  EXPECT_NE(text.find("#20 all_reduce of the loss, 4 bytes, 2.3 s ago: running\n"),
            std::string::npos);
  EXPECT_NE(text.find("#21 gather of the weights of block 3, 1048576 bytes, 2.3 s ago: captured\n"),
            std::string::npos);
  EXPECT_NE(text.find("#22 barrier of the end, 4 bytes, 2.3 s ago: not enqueued"),
            std::string::npos);
}

}  // namespace
}  // namespace quern
