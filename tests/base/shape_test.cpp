#include "base/shape.h"

#include <gtest/gtest.h>

#include "support/files.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(Shape, HoldsAtMostEightExtents) {
  Shape shape{1, 2, 3, 4, 5, 6, 7, 8};
  expect_error([&] { shape.push_back(9); }, {"shape: more than 8 dimensions"});
  EXPECT_EQ(shape.ndim(), 8);
}

TEST(Shape, AnOverflowStaysOneWhateverFollows) {
  constexpr int64_t kLarge = int64_t{1} << 32;
  expect_error([&] { (Shape{kLarge, kLarge, 1}).numel(); }, {"more elements than 64 bits"});
  EXPECT_EQ((Shape{kLarge, kLarge, 2, 0}).numel(), 0);
}

TEST(Shape, AxesCountFromEitherEnd) {
  const Shape shape{2, 3};
  EXPECT_EQ(shape.axis(-2), 0);
  expect_error([&] { shape.axis(-3); }, {"dimension -3 is out of range for shape (2, 3)"});
  expect_error([&] { shape.axis(2); }, {"dimension 2 is out of range for shape (2, 3)"});
}

}  // namespace
}  // namespace quern
