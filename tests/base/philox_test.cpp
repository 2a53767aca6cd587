#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quern::kernels {
namespace {

void expect_words(const PhiloxBlock& block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(block.word[0], a);
  EXPECT_EQ(block.word[1], b);
  EXPECT_EQ(block.word[2], c);
  EXPECT_EQ(block.word[3], d);
}

// The known answers that Random123 (the authors' library) publishes for philox4x32-10.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32({{0, 0, 0, 0}}, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  expect_words(philox4x32({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
               0x6d5451fd);
  expect_words(
      philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
      0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(Philox, UnitIsBelowOne) {
  const PhiloxBlock all_ones{{~0u, ~0u, ~0u, ~0u}};
  EXPECT_EQ(philox_unit<float>(all_ones), 1.0f - 0x1p-24f);
  EXPECT_EQ(philox_unit<double>(all_ones), 1.0 - 0x1p-53);
  EXPECT_EQ(philox_unit<float>(PhiloxBlock{}), 0.0f);
}

// The quantile inverts the distribution function, here by erfc, over 300 orders of magnitude.
TEST(Philox, QuantileInvertsTheDistribution) {
  for (double p = 1e-12; p < 0.5; p *= 1.07) {
    const double q = p - 0.5;  // rounds; the tail that it stands for is 1/2 + q exactly
    const double tail = 0.5 - std::fabs(q);
    const double x = normal_quantile(q);
    // erfc turns a relative 1e-16 of x into x^2 times as much of the tail: x^2 < 50.
    EXPECT_NEAR(0.5 * std::erfc(-x * std::sqrt(0.5)) / tail, 1.0, 1e-13) << p;
    EXPECT_EQ(normal_quantile(-q), -x);
  }
  EXPECT_EQ(normal_quantile(0.0), 0.0);
}

TEST(Philox, IntegersFollowTheBound) {
  int counts[7] = {};
  for (uint64_t i = 0; i < 70000; ++i) ++counts[philox_integer(5, i, 7)];
  // Binomial, mean 10000 and standard deviation 93: five of them.
  for (const int count : counts) EXPECT_NEAR(count, 10000, 465);
}

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
