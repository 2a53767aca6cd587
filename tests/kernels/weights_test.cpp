// Weights in two parts.
#include "kernels/weights.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

float float_of(uint32_t bits) {
  return std::bit_cast<float>(bits);
}
uint32_t bits_of(float x) {
  return std::bit_cast<uint32_t>(x);
}

// All 65,536 low parts of numbers of either sign: zero, subnormal, odd and even, next to a power of
// two, the largest.
TEST(WeightParts, GiveTheWeightBack) {
  for (const uint32_t high : {0x0000u, 0x0001u, 0x3F7Fu, 0x3F80u, 0x3C23u, 0x42FEu, 0x7F7Fu}) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      for (uint32_t low = 0; low < 0x10000u; ++low) {
        const float x = float_of((high | sign) << 16 | low);
        ASSERT_EQ(bits_of(joined_weight(rounded_weight(x), low_part(x))), bits_of(x)) << x;
      }
    }
  }
  for (const float x : {INFINITY, -INFINITY}) {
    EXPECT_EQ(joined_weight(rounded_weight(x), low_part(x)), x);
  }
}

TEST(WeightParts, TheCopyIsTheNearestOrOfTwoThatTowardZero) {
  for (const uint32_t high : {0x0000u, 0x0001u, 0x3F7Fu, 0x3F80u, 0xBF81u}) {
    const double inner = float_of(high << 16), outer = float_of((high + 1) << 16);
    for (uint32_t low = 0; low < 0x10000u; ++low) {
      const double x = float_of(high << 16 | low);
      const double copy = static_cast<float>(rounded_weight(float_of(high << 16 | low)));
      const bool to_outer = std::abs(x - outer) < std::abs(x - inner);
      ASSERT_EQ(copy, to_outer ? outer : inner) << x;
    }
  }
  EXPECT_EQ(static_cast<float>(rounded_weight(float_of(0x7F7F8000u))), float_of(0x7F7F0000u));
}

TEST(WeightParts, ANanStaysOne) {
  for (const uint32_t bits : {0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    const float x = float_of(bits);
    EXPECT_TRUE(std::isnan(static_cast<float>(rounded_weight(x))));
    EXPECT_TRUE(std::isnan(joined_weight(rounded_weight(x), low_part(x))));
  }
}

TEST(Weights, SplitAndJoin) {
  for (const int64_t n : {0, 1, 7, 1025, 70001}) {
    const auto weights = random_vector<float>(n, 1);
    Guarded<bfloat16> copies(n), rounded(n);
    Guarded<uint16_t> low(n);
    Guarded<float> joined(n);
    cpu::split_weights(copies.data(), low.data(), weights.data(), n, {});
    cpu::split_weights(rounded.data(), nullptr, weights.data(), n, {});
    cpu::join_weights(joined.data(), copies.data(), low.data(), n, {});
    EXPECT_TRUE(same_bits(joined.values(), weights));
    EXPECT_TRUE(same_bits(rounded.values(), copies.values()));
  }
}

TEST(Weights, JoinRuns) {
  const auto weights = random_vector<float>(3000, 2), before = random_vector<float>(2000, 3);
  std::vector<bfloat16> copies(3000);
  std::vector<uint16_t> low(3000);
  cpu::split_weights(copies.data(), low.data(), weights.data(), 3000, {});
  const std::vector<WeightRun> runs = {{100, 0, 65}, {1, 65, 1}, {2000, 128, 1000}, {5, 9, 0}};
  Guarded<float> joined(before);
  cpu::join_runs(joined.data(), copies.data(), low.data(), runs.data(), std::ssize(runs), {});
  std::vector<float> expected = before;
  for (const WeightRun& run : runs) {
    std::copy_n(weights.begin() + run.begin, run.count, expected.begin() + run.to);
  }
  EXPECT_TRUE(same_bits(joined.values(), expected));
}

}  // namespace
}  // namespace quern::kernels
