// The placement of ops in a step that did not time them.
#include "profile/time/op_timer.h"

#include <gtest/gtest.h>

namespace quern {
namespace {

DeviceEvent event(int32_t name, int64_t begin = 0, int64_t end = 0, int32_t range = 0) {
  DeviceEvent one;
  one.kind = DeviceEventKind::op;
  one.name = name;
  one.begin = begin;
  one.end = end;
  one.range = range;
  return one;
}

const PhaseWork kTimed{event(1, 1000, 1100),
                       {event(2, 1000, 1020), event(3, 1020, 1060), event(2, 1070, 1100)}};

TEST(PlaceOps, AsInTheTimedStepStretchedToThePhase) {
  const PhaseWork untimed{event(1, 5000, 5200),
                          {event(2, 0, 0, 7), event(3, 0, 0, 8), event(2, 0, 0, 9)}};
  const std::vector<DeviceEvent> placed = place_ops(untimed, kTimed);
  ASSERT_EQ(placed.size(), 3u);
  const int64_t expected[3][2] = {{5000, 5040}, {5040, 5120}, {5140, 5200}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(placed[i].begin, expected[i][0]) << i;
    EXPECT_EQ(placed[i].end, expected[i][1]) << i;
    EXPECT_EQ(placed[i].range, static_cast<int32_t>(7 + i)) << "its own range, of its own step";
    EXPECT_EQ(placed[i].name, untimed.ops[i].name);
  }
}

TEST(PlaceOps, ThePhaseIsOneEventWhereNoStepHasTheSameOps) {
  const PhaseWork fewer{event(1, 5000, 5200), {event(2), event(3)}};
  const PhaseWork others{event(1, 5000, 5200), {event(2), event(3), event(4)}};
  for (const auto& [untimed, timed] :
       {std::pair{fewer, kTimed}, {others, kTimed}, {fewer, PhaseWork{}}}) {
    const std::vector<DeviceEvent> placed = place_ops(untimed, timed);
    ASSERT_EQ(placed.size(), 1u);
    EXPECT_EQ(placed[0].name, 1);
    EXPECT_EQ(placed[0].begin, 5000);
    EXPECT_EQ(placed[0].end, 5200);
  }
}

}  // namespace
}  // namespace quern
