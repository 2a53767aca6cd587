// What every store does when a rank reports that it cannot start.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "dist/store.h"
#include "support/files.h"

namespace quern::testing_support {

// Two ranks' views of one store, with a limit of 10 s.
inline void expect_reported_failure_ends_waits(Store& first, Store& second) {
  using Clock = std::chrono::steady_clock;
  first.set("a", "1");
  EXPECT_EQ(second.report_failure("no memory is left"), "no memory is left");
  EXPECT_EQ(first.report_failure("a rank is gone"), "no memory is left") << "the first one counts";
  const auto begin = Clock::now();
  expect_error([&] { first.get("b"); }, {"no memory is left"});
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(5000));
  EXPECT_EQ(second.get("a"), "1");
}

}  // namespace quern::testing_support
