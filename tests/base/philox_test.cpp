#include "base/philox.h"

#include <gtest/gtest.h>

namespace quern::kernels {
namespace {

// Between neighbouring floats every second number rounds up to the end, which does not belong.
TEST(PhiloxUniform, NeverGivesTheUpperEnd) {
  const float high = std::nextafter(1.0f, 2.0f);
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(philox_uniform<float>(1, i, 1.0, double{high}), 1.0f);
  }
}

// Values of Wichura's paper for 0.25, 0.001 and 1e-20, and their mirror images.
TEST(NormalQuantile, InTheMiddleAndInBothTails) {
  EXPECT_NEAR(normal_quantile(-0.25), -0.674489750196081743, 1e-15);
  EXPECT_NEAR(normal_quantile(0.25), 0.674489750196081743, 1e-15);
  EXPECT_NEAR(normal_quantile(0.001 - 0.5), -3.090232306167813542, 1e-14);
  EXPECT_NEAR(normal_quantile(0x1p-40 - 0.5), -7.0477002566644, 1e-12) << "beyond r = 5";
  EXPECT_NEAR(normal_quantile(0.5 - 0x1p-40), 7.0477002566644, 1e-12);
}

}  // namespace
}  // namespace quern::kernels
