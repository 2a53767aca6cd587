// The polynomials of common/math.h against the library in double, in units in the last place.
#include "kernels/common/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace quern::kernels {
namespace {

double ulp(float x) {
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

// The largest error over every 1009th float (4 million, all exponents and signs). A NaN, infinite
// or zero exact result must be reproduced.
template <class F, class Exact>
double worst_error(F f, Exact exact) {
  double worst = 0.0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 1009) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const double wanted = exact(static_cast<double>(x));
    const float nearest = static_cast<float>(wanted), got = f(x);
    if (std::isnan(nearest)) {
      EXPECT_TRUE(std::isnan(got)) << x;
    } else if (std::isinf(nearest)) {
      EXPECT_EQ(got, nearest) << x;
    } else {
      worst = std::max(worst, std::fabs(got - wanted) / ulp(nearest));
    }
  }
  return worst;
}

// The bounds are documented beside each function.
TEST(Math, Exp) {
  EXPECT_LE(worst_error([](float x) { return math::exp(x); }, [](double x) { return std::exp(x); }),
            1.1);
}
TEST(Math, Log) {
  EXPECT_LE(worst_error([](float x) { return math::log(x); }, [](double x) { return std::log(x); }),
            1.0);
}
TEST(Math, Tanh) {
  EXPECT_LE(
      worst_error([](float x) { return math::tanh(x); }, [](double x) { return std::tanh(x); }),
      2.5);
}
TEST(Math, Erf) {
  EXPECT_LE(worst_error([](float x) { return math::erf(x); }, [](double x) { return std::erf(x); }),
            2.5);
}

TEST(Math, Limits) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(math::exp(-infinity), 0.0f);
  EXPECT_EQ(math::exp(0.0f), 1.0f);
  EXPECT_EQ(math::log(0.0f), -infinity);
  EXPECT_EQ(math::log(1.0f), 0.0f);
  EXPECT_EQ(math::tanh(-infinity), -1.0f);
  EXPECT_EQ(math::erf(infinity), 1.0f);
}

}  // namespace
}  // namespace quern::kernels
