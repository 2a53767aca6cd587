// From CUPTI's records to a profile: the call that caused a kernel, and that call's range.
#include "profile/time/kernel_ranges.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

RangeEvent range(int32_t parent, int64_t begin, int64_t end) {
  RangeEvent event;
  event.parent = parent;
  event.begin = begin;
  event.end = end;
  return event;
}

DeviceRecord kernel(const char* name, int64_t begin, int64_t end, uint64_t correlation,
                    uint64_t node = 0) {
  DeviceRecord record;
  record.event.begin = begin;
  record.event.end = end;
  record.event.correlation = correlation;
  record.name = name;
  record.graph_node = node;
  return record;
}

//  0 forward 100..500: 1 module 110..300 (2 op 120..150, 3 op 160..290), 4 op 310..400
//  5 backward 600..900
Profile example() {
  Profile profile;
  profile.steps = {{90, 1000}};
  profile.ranges = {range(-1, 100, 500), range(0, 110, 300), range(1, 120, 150),
                    range(1, 160, 290),  range(0, 310, 400), range(-1, 600, 900)};
  return profile;
}

TEST(Attribute, FindsTheInnermostRange) {
  const Profile profile = example();
  const std::vector<std::pair<int64_t, int32_t>> cases{
      {99, -1}, {100, 0}, {115, 1}, {120, 2}, {150, 2},  {155, 1}, {290, 3}, {295, 1},
      {305, 0}, {400, 4}, {450, 0}, {500, 0}, {501, -1}, {700, 5}, {901, -1}};
  for (const auto& [time, expected] : cases) {
    EXPECT_EQ(range_at(profile.ranges, time), expected) << time;
  }
  EXPECT_EQ(range_at({}, 5), -1);
}

TEST(Attribute, AKernelIsOfTheRangeThatLaunchedIt) {
  Profile profile = example();
  attribute(profile,
            {{"cudaLaunchKernelExC_v11060", 170, 175, 8},
             {"cudaLaunchKernel_v7000", 125, 130, 7},
             {"cudaGetLastError_v3020", 131, 132, 9}},
            {kernel("b", 400, 450, 8), kernel("a", 200, 390, 7)}, {});
  ASSERT_EQ(profile.calls.size(), 2u);  // by begin; the third neither launches nor waits
  EXPECT_EQ(profile.names[profile.calls[0].name], "cudaLaunchKernel");
  EXPECT_EQ(profile.names[profile.calls[1].name], "cudaLaunchKernelExC");
  EXPECT_EQ(profile.calls[1].range, 3);
  ASSERT_EQ(profile.device_events.size(), 2u);
  EXPECT_EQ(profile.names[profile.device_events[0].name], "a");
  EXPECT_EQ(profile.device_events[0].range, 2);
  EXPECT_EQ(profile.device_events[0].correlation, 7u);
  EXPECT_EQ(profile.device_events[1].range, 3);
}

// Another thread launches while the recording one waits in range 3, beside its calls.
TEST(Attribute, AKernelOfAnotherThreadIsOfTheOpenRange) {
  Profile profile = example();
  const int64_t unknown = attribute(profile,
                                    {{"cudaEventQuery_v3020", 165, 280, 6},
                                     {"cudaLaunchKernelExC_v11060", 170, 175, 8, true},
                                     {"cudaMalloc_v3020", 180, 185, 9, true},
                                     {"cudaLaunchKernel_v7000", 320, 330, 10}},
                                    {kernel("nccl", 200, 390, 8), kernel("b", 400, 450, 10)}, {});
  EXPECT_EQ(unknown, 0);
  ASSERT_EQ(profile.calls.size(), 2u);  // not the allocation of the other thread
  EXPECT_EQ(profile.calls[0].correlation, 8u);
  EXPECT_EQ(profile.calls[0].range, 3);
  EXPECT_EQ(profile.device_events[0].range, 3);
  EXPECT_EQ(profile.device_events[1].range, 4);
}

// The runtime calls the driver: a kernel of either call belongs to the outer one.
TEST(Attribute, NestedCallsAreOne) {
  Profile profile = example();
  attribute(profile,
            {{"cuLaunchKernelEx", 171, 174, 21},
             {"cudaLaunchKernelExC_v11060", 170, 175, 20},
             {"cudaMemcpyAsync_v3020", 180, 190, 30},
             {"cuMemcpyHtoDAsync_v2", 181, 189, 30},
             {"cuLaunchKernel", 320, 330, 40}},
            {kernel("a", 200, 210, 21), kernel("copy", 215, 220, 30), kernel("b", 340, 350, 40)},
            {});
  ASSERT_EQ(profile.calls.size(), 3u);
  EXPECT_EQ(profile.names[profile.calls[0].name], "cudaLaunchKernelExC");
  EXPECT_EQ(profile.names[profile.calls[2].name], "cuLaunchKernel");
  ASSERT_EQ(profile.device_events.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(profile.device_events[i].correlation, profile.calls[i].correlation) << i;
    EXPECT_EQ(profile.device_events[i].range, profile.calls[i].range) << i;
  }
  EXPECT_EQ(profile.device_events[2].range, 4);
}

// A replay's kernels have the graph's launch as call, and the ranges of its capture.
TEST(Attribute, AGraphsKernelsAreOfTheRangesOfTheCapture) {
  Profile profile = example();
  profile.steps = {{2000, 3000}, {3000, 4000}};
  const int64_t unknown = attribute(profile,
                                    {{"cudaGraphLaunch_v10000", 1500, 1510, 1},
                                     {"cudaGraphLaunch_v10000", 2100, 2110, 2},
                                     {"cudaGraphLaunch_v10000", 3100, 3110, 3}},
                                    {kernel("a", 1600, 1700, 1, 77), kernel("a", 2200, 2300, 2, 77),
                                     kernel("b", 2300, 2400, 2, 78), kernel("a", 3200, 3300, 3, 77),
                                     kernel("c", 3300, 3400, 3, 79)},
                                    {{77, 2}, {78, 5}});
  EXPECT_EQ(unknown, 1);                // the node 79
  ASSERT_EQ(profile.calls.size(), 2u);  // of the steps
  EXPECT_EQ(profile.calls[0].range, -1);
  const std::vector<std::pair<int32_t, uint64_t>> expected{{2, 2}, {5, 2}, {2, 3}, {-1, 3}};
  ASSERT_EQ(profile.device_events.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(profile.device_events[i].range, expected[i].first) << i;
    EXPECT_EQ(profile.device_events[i].correlation, expected[i].second) << i;
  }
}

// GPU times are converted: one may lie slightly before the step that launched it.
TEST(Attribute, WhatTheStepsLaunchedIsTheirs) {
  Profile profile = example();
  const int64_t unknown = attribute(
      profile, {{"cudaLaunchKernel_v7000", 91, 92, 1}, {"cudaLaunchKernel_v7000", 10, 12, 2}},
      {kernel("early", 89, 95, 1), kernel("before", 96, 99, 2), kernel("unknown", 300, 310, 9),
       kernel("after", 1001, 1002, 10)},
      {});
  EXPECT_EQ(unknown, 1);
  ASSERT_EQ(profile.calls.size(), 1u);
  ASSERT_EQ(profile.device_events.size(), 2u);
  EXPECT_EQ(profile.names[profile.device_events[0].name], "early");
  EXPECT_EQ(profile.names[profile.device_events[1].name], "unknown");
  EXPECT_EQ(profile.device_events[1].range, -1);
  EXPECT_EQ(profile.device_events[1].correlation, 0u);  // no known call
}

}  // namespace
}  // namespace quern
