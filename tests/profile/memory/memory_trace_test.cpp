// The peak of a trace and the live allocations at a time, on traces made by hand.
#include "profile/memory/memory_trace.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

TracedAllocation alive(int64_t bytes, int64_t from, int64_t to, MemoryCategory category) {
  return {.bytes = bytes, .allocated = from, .released = to, .category = category, .place = {}};
}

MemoryTrace example() {
  MemoryTrace trace;
  trace.allocations = {
      alive(100, 0, -1, MemoryCategory::parameters), alive(10, 1, 5, MemoryCategory::activations),
      alive(30, 2, 4, MemoryCategory::other),
      alive(35, 4, 6, MemoryCategory::other),  // where the one before ended
  };
  trace.end = 10;
  return trace;
}

TEST(MemoryTrace, EveryCategoryHasAName) {
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    EXPECT_STRNE(name_of(static_cast<MemoryCategory>(i)), "") << i;
  }
}

TEST(MemoryTrace, ThePeakIsTheFirstTimeOfMostBytes) {
  const MemoryPeak peak = peak_of(example());
  EXPECT_EQ(peak.bytes, 145);
  EXPECT_EQ(peak.time, 4);
  EXPECT_EQ(peak.live, (std::vector<size_t>{0, 3, 1})) << "largest first";
  EXPECT_EQ(peak.by_category, (MemoryByCategory{100, 0, 0, 10, 0, 35}));
}

TEST(MemoryTrace, WhatEndsAtATimeIsNotAliveThen) {
  const MemoryTrace trace = example();
  EXPECT_EQ(live_at(trace, 3), (std::vector<size_t>{0, 2, 1}));
  EXPECT_EQ(live_at(trace, 4), (std::vector<size_t>{0, 3, 1}));
  EXPECT_EQ(live_at(trace, 6), (std::vector<size_t>{0}));
}

TEST(MemoryTrace, TheIncompletePartHasNoPeak) {
  MemoryTrace trace = example();
  trace.complete_from = 5;
  const MemoryPeak peak = peak_of(trace);
  EXPECT_EQ(peak.time, 5) << "nothing changes between 4 and 5 but at 5";
  EXPECT_EQ(peak.bytes, 135);
  trace.complete_from = 8;
  EXPECT_EQ(peak_of(trace).bytes, 100);
  EXPECT_EQ(peak_of(trace).time, 8);
}

TEST(MemoryTrace, AnEmptyTraceHasAnEmptyPeak) {
  const MemoryPeak peak = peak_of({});
  EXPECT_EQ(peak.bytes, 0);
  EXPECT_TRUE(peak.live.empty());
}

}  // namespace
}  // namespace quern
