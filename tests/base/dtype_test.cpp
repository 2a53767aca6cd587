#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/device.h"
#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(DType, HasASizeAndAName) {
  const std::pair<DType, std::pair<size_t, std::string>> all[] = {
      {DType::f32, {4, "f32"}}, {DType::bf16, {2, "bf16"}}, {DType::f16, {2, "f16"}},
      {DType::f64, {8, "f64"}}, {DType::i32, {4, "i32"}},   {DType::i64, {8, "i64"}},
      {DType::u16, {2, "u16"}}, {DType::u8, {1, "u8"}},     {DType::boolean, {1, "bool"}}};
  for (const auto& [dtype, expected] : all) {
    EXPECT_EQ(size_of(dtype), expected.first);
    EXPECT_EQ(cat(dtype), expected.second);
    EXPECT_EQ(is_floating(dtype), expected.second.find('f') != std::string::npos);
  }
  const auto unknown = static_cast<DType>(99);
  expect_error([&] { size_of(unknown); }, {"size_of: unknown dtype"});
  expect_error([&] { name_of(unknown); }, {"name_of: unknown dtype"});
}

TEST(Device, Prints) {
  EXPECT_EQ(cat(kCpu), "cpu");
  EXPECT_EQ(cat(Device{DeviceType::cuda, 1}), "cuda:1");
}

float through_bf16(float x) {
  return static_cast<float>(bfloat16(x));
}
float through_f16(float x) {
  return static_cast<float>(float16(x));
}

TEST(Half, SpecialValuesStayWhatTheyAre) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& through : {through_bf16, through_f16}) {
    EXPECT_TRUE(std::isnan(through(std::nanf(""))));
    EXPECT_EQ(through(kInfinity), kInfinity);
    EXPECT_EQ(through(-kInfinity), -kInfinity);
    EXPECT_EQ(through(-1.5f), -1.5f);
    EXPECT_TRUE(std::signbit(through(-0.0f)));
  }
  EXPECT_EQ(through_f16(65520.0f), kInfinity) << "rounds up from the largest, 65504";
  EXPECT_EQ(through_f16(65519.0f), 65504.0f);
  EXPECT_EQ(through_f16(0x1p-24f), 0x1p-24f) << "the smallest subnormal";
  EXPECT_EQ(through_f16(0x1p-26f), 0.0f);
}

}  // namespace
}  // namespace quern
