// Conversions between all dtypes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/factory.h"

namespace quern {
namespace {

constexpr DType kAll[] = {DType::f32, DType::bf16, DType::f16, DType::f64,    DType::i32,
                          DType::i64, DType::u16,  DType::u8,  DType::boolean};

double convert(double value, DType from, DType to) {
  return full({}, value, from).to(to).to(DType::f64).item();
}

TEST(Convert, EveryPairKeepsWhatBothCanHold) {
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      for (const double value : {0.0, 1.0, 2.0, 200.0}) {
        const bool as_bool = from == DType::boolean || to == DType::boolean;
        const double expected = as_bool ? (value != 0.0) : value;
        EXPECT_EQ(convert(value, from, to), expected) << from << " to " << to << ", " << value;
      }
    }
  }
}

TEST(Convert, NegativesBetweenSignedTypes) {
  for (const DType from :
       {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64}) {
    for (const DType to :
         {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64}) {
      EXPECT_EQ(convert(-96.0, from, to), -96.0) << from << " to " << to;
    }
  }
}

TEST(Convert, ManyStridedElements) {
  for (const DType to : kAll) {
    const Tensor x = random_integers({33, 65}, 2);
    const Tensor y = x.transpose(0, 1).to(to);
    EXPECT_EQ(y.shape(), (Shape{65, 33}));
    EXPECT_EQ(y.transpose(0, 1).to(DType::i32).to_vector<int32_t>(), x.to_vector<int32_t>()) << to;
  }
}

TEST(Convert, FloatsToIntegersTruncate) {
  EXPECT_EQ(convert(2.9, DType::f64, DType::i32), 2.0);
  EXPECT_EQ(convert(-2.9, DType::f32, DType::i64), -2.0);
  EXPECT_EQ(convert(0.5, DType::f32, DType::boolean), 1.0) << "anything but 0 is true";
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(convert(nan, DType::f32, DType::boolean), 1.0);
}

// So that ids beyond 32 bits do not become valid ones.
TEST(Convert, LongIntegersSaturate) {
  const std::vector<int64_t> values{(int64_t{1} << 32) + 5, -(int64_t{1} << 32), -100, 1 << 30};
  EXPECT_EQ(from_vector(values, {4}).to(DType::i32).to_vector<int32_t>(),
            (std::vector<int32_t>{INT32_MAX, INT32_MIN, -100, 1 << 30}));
}

TEST(Convert, TiesRoundToEven) {
  EXPECT_EQ(convert(1.0 + 0x1p-8, DType::f32, DType::bf16), 1.0);
  EXPECT_EQ(convert(1.0 + 0x3p-8, DType::f32, DType::bf16), 1.0 + 0x1p-6);
  EXPECT_EQ(convert(1.0 + 0x1p-11, DType::f32, DType::f16), 1.0);
  EXPECT_EQ(convert(1.0 + 0x3p-11, DType::f32, DType::f16), 1.0 + 0x1p-9);
}

TEST(Convert, DoubleIsRoundedOnce) {
  // Just above a tie: through f32 it would first fall on the tie, and then to even.
  EXPECT_EQ(convert(1.0 + 0x1p-8 + 0x1p-40, DType::f64, DType::bf16), 1.0 + 0x1p-7);
  EXPECT_EQ(convert(1.0 + 0x1p-11 + 0x1p-40, DType::f64, DType::f16), 1.0 + 0x1p-10);
}

TEST(Convert, ExtremesOfTheHalves) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(convert(65504.0, DType::f32, DType::f16), 65504.0);
  EXPECT_EQ(convert(65520.0, DType::f32, DType::f16), inf);
  EXPECT_EQ(convert(0x1p-24, DType::f32, DType::f16), 0x1p-24) << "the smallest subnormal";
  EXPECT_EQ(convert(0x1p-25, DType::f32, DType::f16), 0.0);
  EXPECT_EQ(convert(-inf, DType::f32, DType::bf16), -inf);
  EXPECT_EQ(convert(3.4e38, DType::f32, DType::bf16), inf);
  for (const DType to : {DType::bf16, DType::f16}) {
    EXPECT_TRUE(std::isnan(convert(std::nan(""), DType::f32, to)));
  }
}

// Every bf16 and every f16 survives the way to f32 and back.
TEST(Convert, HalvesThroughFloatAreExact) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto b = bfloat16::from_bits(static_cast<uint16_t>(bits));
    const auto h = float16::from_bits(static_cast<uint16_t>(bits));
    if (!std::isnan(static_cast<float>(b))) {
      ASSERT_EQ(bfloat16(static_cast<float>(b)).bits, bits);
    }
    if (!std::isnan(static_cast<float>(h))) {
      ASSERT_EQ(float16(static_cast<float>(h)).bits, bits);
    }
  }
}

}  // namespace
}  // namespace quern
