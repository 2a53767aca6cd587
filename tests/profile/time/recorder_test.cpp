// The recorder on the CPU: ranges with their times and parents, steps, memory in use, and its cost.
#include "profile/time/recorder.h"

#include <gtest/gtest.h>

#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "support/sanitized.h"
#include "tensor/factory.h"

namespace quern {
namespace {

Allocator& allocator() {
  const Context& context = Context::current();
  return *context.allocator();
}

void work() {
  const Variable x = Variable::leaf(ones({4, 6}));
  Variable y;
  {
    const RangeScope phase(RangeKind::phase, "forward");
    const RangeScope module(RangeKind::module, "norm");
    y = sum(naive_rms_norm(x, ones({6}), 1e-5));
  }
  const RangeScope phase(RangeKind::phase, "backward");
  backward(y);
}

Profile record(int steps) {
  Profile profile;
  Recorder recorder(profile);
  for (int i = 0; i < steps; ++i) {
    recorder.begin_step();
    work();
    recorder.end_step();
  }
  recorder.finish();
  return profile;
}

TEST(Recorder, RangesNestAndLieInTheirSteps) {
  const Profile profile = record(3);
  EXPECT_FALSE(profile.on_gpu);
  EXPECT_EQ(profile.device, "CPU");
  EXPECT_EQ(profile.gpu_times, GpuTimes::none);
  EXPECT_EQ(profile.note, "");
  ASSERT_EQ(profile.steps.size(), 3u);
  ASSERT_GT(profile.ranges.size(), 30u);
  int64_t before = 0;
  size_t roots = 0;
  for (size_t i = 0; i < profile.ranges.size(); ++i) {
    const RangeEvent& range = profile.ranges[i];
    EXPECT_LE(before, range.begin);
    EXPECT_LT(range.begin, range.end);
    before = range.begin;
    if (range.parent < 0) {
      EXPECT_EQ(range.kind, RangeKind::phase);
      const TimeSpan& step = profile.steps[roots++ / 2];
      EXPECT_LE(step.begin, range.begin);
      EXPECT_GE(step.end, range.end);
    } else {
      ASSERT_LT(static_cast<size_t>(range.parent), i);
      const RangeEvent& parent = profile.ranges[static_cast<size_t>(range.parent)];
      EXPECT_LE(parent.begin, range.begin);
      EXPECT_GE(parent.end, range.end);
    }
  }
  EXPECT_EQ(roots, 6u);
}

TEST(Recorder, RangesSayWhatTheyAre) {
  const Profile profile = record(1);
  const Names& names = profile.names;
  bool forward = false, backward = false;
  for (const RangeEvent& range : profile.ranges) {
    EXPECT_TRUE(range.kind != RangeKind::phase || range.phase == range.name);
    EXPECT_TRUE(range.kind != RangeKind::module || names[range.module] == "norm");
    EXPECT_TRUE(range.kind == RangeKind::op || !range.backward);
    if (range.kind != RangeKind::op || names[range.name] != "sum") continue;
    EXPECT_EQ(names[range.module], "norm");
    EXPECT_EQ(names[range.phase], range.backward ? "backward" : "forward");
    if (names[range.shapes] == "(4, 6)") (range.backward ? backward : forward) = true;
  }
  EXPECT_TRUE(forward);
  EXPECT_TRUE(backward);
}

struct Counted : AllocationObserver {
  int64_t bytes = 0, reserved = 0;
  void on_allocate(const Allocation& allocation) override { bytes += allocation.bytes; }
  void on_release(const Allocation& allocation) override { bytes -= allocation.bytes; }
  void on_reserve(void*, int64_t size) override { reserved += size; }
};

// Every point equals the allocator's state at that time; the previous observer is called too.
TEST(Recorder, MemoryIsTheAllocatorsAndOthersAreToldOfIt) {
  Counted counted;
  allocator().set_observer(&counted);
  const Tensor held = ones({100});
  Profile profile;
  MemoryStats before, inside;
  {
    Recorder recorder(profile);
    before = allocator().stats();
    const Tensor more = ones({1000});
    inside = allocator().stats();
    const Tensor large = ones({int64_t{1} << 24});  // a segment of its own
    recorder.finish();
  }
  EXPECT_EQ(counted.bytes, 400);
  EXPECT_GE(counted.reserved, int64_t{4} << 24);
  EXPECT_EQ(allocator().set_observer(nullptr), &counted);
  ASSERT_GE(profile.memory.size(), 4u);
  EXPECT_EQ(profile.memory[0].allocated, before.allocated);
  EXPECT_EQ(profile.memory[0].reserved, before.reserved);
  int64_t most = 0, most_reserved = 0, time = 0;
  bool seen = false;
  for (const MemoryPoint& point : profile.memory) {
    EXPECT_LE(time, point.time);
    time = point.time;
    most = std::max(most, point.allocated);
    most_reserved = std::max(most_reserved, point.reserved);
    seen |= point.allocated == inside.allocated;
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(most, inside.allocated + (int64_t{4} << 24));
  EXPECT_GE(most_reserved, before.reserved + (int64_t{4} << 24));
}

TEST(Recorder, NothingIsRecordedAfterwards) {
  Profile profile;
  Recorder recorder(profile);
  recorder.finish();
  const size_t points = profile.memory.size();
  work();
  EXPECT_TRUE(profile.ranges.empty());
  EXPECT_EQ(profile.memory.size(), points);
  EXPECT_THROW(recorder.finish(), Error);
}

TEST(Recorder, DoesNotEndWithinARange) {
  Profile profile;
  Recorder recorder(profile);
  const RangeScope range("op");
  EXPECT_THROW(recorder.finish(), Error);
}

// A range costs some 0.1 us beside its two clock readings, which are slow on some virtual machines.
// The bound detects an allocation or a string per range: they cost several times as much. The best
// of many short trials excludes other processes.
TEST(Recorder, ARangeIsCheap) {
  if (testing_support::kSanitized)
    GTEST_SKIP() << "AddressSanitizer makes every access to memory slower";
  Profile profile;
  Recorder recorder(profile);
  constexpr int kTrials = 100;
  constexpr int kRanges = 200;
  int64_t best = int64_t{1} << 60;
  int64_t reading = best;
  for (int trial = 0; trial < kTrials; ++trial) {
    const int64_t begin = profile_clock();
    for (int i = 0; i < kRanges; ++i) {
      const RangeScope range(RangeKind::module, "post_attention_layernorm");
    }
    const int64_t middle = profile_clock();
    best = std::min(best, (middle - begin) / kRanges);
    for (int i = 1; i < kRanges; ++i) profile_clock();
    reading = std::min(reading, (profile_clock() - middle) / kRanges);
  }
  RecordProperty("ns_a_range", static_cast<int>(best));
  EXPECT_LT(best, 1000 + 2 * reading);
  EXPECT_EQ(profile.ranges.size(), size_t{kTrials * kRanges});
}

}  // namespace
}  // namespace quern
