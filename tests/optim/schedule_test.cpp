#include "optim/schedule.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quern {
namespace {

Schedule make(ScheduleKind kind) {
  return {kind, 2.0, 0.1, 10, 110, 0.5};
}

TEST(Schedule, WarmsUpLinearly) {
  for (const ScheduleKind kind :
       {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::wsd}) {
    EXPECT_DOUBLE_EQ(make(kind).at(0), 0.2);
    EXPECT_DOUBLE_EQ(make(kind).at(4), 1.0);
    EXPECT_DOUBLE_EQ(make(kind).at(10), 2.0);
  }
}

TEST(Schedule, CosinePassesTheMiddleAndEndsAtTheRatio) {
  EXPECT_NEAR(make(ScheduleKind::cosine).at(60), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(make(ScheduleKind::cosine).at(110), 0.2, 1e-12);
  EXPECT_NEAR(make(ScheduleKind::cosine).at(1000), 0.2, 1e-12);
}

TEST(Schedule, LinearAndWsdDecayInALine) {
  EXPECT_NEAR(make(ScheduleKind::linear).at(60), 2.0 * 0.55, 1e-12);
  EXPECT_NEAR(make(ScheduleKind::wsd).at(55), 2.0, 1e-12);
  EXPECT_NEAR(make(ScheduleKind::wsd).at(82), 2.0 * (1.0 - 0.9 * 27.0 / 55.0), 1e-12);
  EXPECT_NEAR(make(ScheduleKind::wsd).at(110), 0.2, 1e-12);
}

TEST(Schedule, ConstantStays) {
  EXPECT_DOUBLE_EQ(make(ScheduleKind::constant).at(109), 2.0);
}

TEST(Schedule, WsdWithoutADecayStaysUntilTheEnd) {
  Schedule schedule = make(ScheduleKind::wsd);
  schedule.decay_fraction = 0.0;
  EXPECT_DOUBLE_EQ(schedule.at(50), 2.0);
  EXPECT_DOUBLE_EQ(schedule.at(109), 2.0);
  EXPECT_NEAR(schedule.at(110), 0.2, 1e-12);
}

TEST(Schedule, AnUnknownKindIsAnError) {
  EXPECT_THROW(make(static_cast<ScheduleKind>(99)).at(50), Error);
}

}  // namespace
}  // namespace quern
