#include "base/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace quern {
namespace {

float through_f8(float x) {
  return static_cast<float>(float8(x));
}

// The value of a pattern by the format's definition.
double defined_value(int bits) {
  const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa / 8.0, -6)
                                         : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return bits < 128 ? magnitude : -magnitude;
}

bool is_nan(int bits) {
  return (bits & 127) == 127;
}

TEST(Float8, EveryPatternHasItsValueAndComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const float8 x = float8::from_bits(static_cast<uint8_t>(bits));
    const auto value = static_cast<float>(x);
    if (is_nan(bits)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(value, defined_value(bits)) << bits;
      EXPECT_EQ(float8(value).bits, bits);
    }
  }
}

TEST(Float8, RoundsToTheNearestAndTiesToEven) {
  std::mt19937 engine(1);
  std::vector<float> inputs;
  for (int bits = 0; bits < 127; ++bits) {  // values, midpoints, and their neighbours
    const auto low = static_cast<float>(defined_value(bits));
    const auto middle = static_cast<float>((low + defined_value(std::min(bits + 1, 126))) / 2);
    for (const float x : {low, middle}) {
      inputs.insert(inputs.end(), {x, std::nextafter(x, 1e9f), std::nextafter(x, -1e9f)});
    }
  }
  std::uniform_real_distribution<float> exponent(-14.0f, 9.0f), sign(-1.0f, 1.0f);
  for (int i = 0; i < 20000; ++i) {
    inputs.push_back(std::copysign(std::exp2(exponent(engine)), sign(engine)));
  }
  for (const float x : inputs) {
    int nearest = 0;
    for (int bits = 1; bits < 127; ++bits) {
      const double now = std::abs(std::abs(x) - defined_value(bits));
      const double before = std::abs(std::abs(x) - defined_value(nearest));
      if (now < before || (now == before && bits % 2 == 0)) nearest = bits;
    }
    EXPECT_EQ(float8(x).bits & 127, nearest) << x;
    EXPECT_EQ(std::signbit(through_f8(x)), std::signbit(x)) << x;
  }
}

TEST(Float8, SaturatesAndKeepsNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(through_f8(449.0f), float8::kLargest);
  EXPECT_EQ(through_f8(-1e30f), -float8::kLargest);
  EXPECT_EQ(through_f8(kInfinity), float8::kLargest);
  EXPECT_TRUE(std::isnan(through_f8(std::nanf(""))));
  EXPECT_TRUE(std::signbit(through_f8(-0.0f)));
}

}  // namespace
}  // namespace quern
