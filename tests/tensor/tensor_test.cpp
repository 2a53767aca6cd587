#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <numeric>

#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;

Tensor counted(const Shape& shape) {  // 0, 1, 2, ...
  Floats numbers(static_cast<size_t>(shape.numel()));
  std::iota(numbers.begin(), numbers.end(), 0.0f);
  return from_vector(numbers, shape);
}

TEST(Tensor, UndefinedUntilMade) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  expect_error([&] { none.raw_data(); }, {"undefined"});
}

TEST(Shape, MoreElementsThanMemoryHasAreRefused) {
  constexpr int64_t kLarge = int64_t{1} << 32;
  EXPECT_EQ((Shape{kLarge, kLarge, 0}).numel(), 0);
  EXPECT_EQ((Shape{kLarge, kLarge >> 5}).numel(), int64_t{1} << 59);
  for (const Shape& shape :
       {Shape{kLarge, kLarge}, Shape{kLarge, kLarge >> 1}, Shape{kLarge, kLarge >> 4}}) {
    expect_error([&] { shape.numel(); }, {"shape (4294967296, ", "more elements than 64 bits"});
  }
}

TEST(Tensor, CopiesOfAHandleShareStorage) {
  const Tensor x = counted({3});
  const Tensor y = x;
  y.data<float>()[1] = 9.0f;
  EXPECT_EQ(x.to_vector<float>(), (Floats{0, 9, 2}));
  EXPECT_TRUE(x.shares_storage(y));
  EXPECT_FALSE(x.is_sole_owner());
  EXPECT_FALSE(x.shares_storage(x.clone()));
}

TEST(Tensor, TransposeAndPermuteMoveNothing) {
  const Tensor x = counted({2, 3});
  const Tensor t = x.transpose(0, -1);
  EXPECT_EQ(t.shape(), (Shape{3, 2}));
  EXPECT_EQ(t.raw_data(), x.raw_data());
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.to_vector<float>(), (Floats{0, 3, 1, 4, 2, 5}));
  const Tensor p = counted({2, 3, 2}).permute({2, 0, -2});
  EXPECT_EQ(p.shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(p.to_vector<float>(), (Floats{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11}));
  expect_error([&] { x.permute({0, 0}); }, {"permute", "twice"});
  expect_error([&] { x.permute({0}); }, {"permute", "(2, 3)"});
}

TEST(Tensor, SliceAndItsBounds) {
  const Tensor x = counted({3, 4});
  const Tensor s = x.slice(1, 1, 3).slice(0, 2, 3);
  EXPECT_EQ(s.to_vector<float>(), (Floats{9, 10}));
  EXPECT_EQ(x.slice(0, 3, 3).numel(), 0);
  expect_error([&] { x.slice(1, 2, 5); }, {"slice", "2 to 5", "(3, 4)"});
  expect_error([&] { x.slice(1, 3, 2); }, {"slice"});
  expect_error([&] { x.slice(2, 0, 1); }, {"dimension 2", "(3, 4)"});
}

TEST(Tensor, ExpandRepeatsWithoutMemory) {
  const Tensor x = counted({2, 1});
  const Tensor e = x.expand({3, 2, 2});
  EXPECT_EQ(e.strides(), (Strides{0, 1, 0}));
  EXPECT_EQ(e.to_vector<float>(), (Floats{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1}));
  expect_error([&] { x.expand({3, 1}); }, {"expand", "(2, 1)", "(3, 1)"});
  expect_error([&] { x.expand({2}); }, {"expand", "more dimensions"});
}

TEST(Tensor, ReshapeIsAViewWhereStridesAllowIt) {
  const Tensor x = counted({2, 3, 4});
  EXPECT_TRUE(x.reshape({6, -1}).shares_storage(x));
  EXPECT_EQ(x.reshape({-1}).numel(), 24);
  // Heads of a projection: the last dimension of a strided slice splits without a copy.
  const Tensor part = x.slice(2, 0, 2);
  const Tensor heads = part.reshape({2, 3, 2, 1});
  EXPECT_TRUE(heads.shares_storage(x));
  EXPECT_EQ(heads.to_vector<float>(), part.to_vector<float>());
  // Leading dimensions of that slice join: their steps are even.
  EXPECT_TRUE(part.reshape({6, 2}).shares_storage(x));
}

// Kernels ask for aligned strides, whatever the extents: a stride of 1 would send a batch of one to
// slower kernels.
TEST(Tensor, AnOnlyElementHasTheStrideOfItsRun) {
  const Tensor x = counted({6, 4});
  EXPECT_EQ(x.reshape({1, 6, 4}).strides(), (Strides{24, 4, 1}));
  EXPECT_EQ(x.reshape({1, 1, 2, 3, 4}).strides(), (Strides{24, 24, 12, 4, 1}));
  EXPECT_EQ(x.reshape({6, 1, 4}).strides(), (Strides{4, 4, 1}));
  EXPECT_EQ(x.reshape({1, 6, 4}).transpose(0, 1).strides(), (Strides{4, 4, 1}));
  EXPECT_EQ(x.reshape({6, 4, 1}).permute({2, 1, 0}).strides(), (Strides{4, 1, 4}));
  EXPECT_EQ(x.reshape({1, 6, 2, 2}).slice(2, 1, 2).strides(), (Strides{24, 4, 2, 1}));
  EXPECT_EQ(x.slice(0, 5, 6).expand({1, 1, 4}).strides(), (Strides{4, 4, 1}));
  EXPECT_EQ(x.slice(0, 5, 6).slice(1, 3, 4).strides(), (Strides{1, 1}));
}

TEST(Tensor, ReshapeCopiesWhereItMust) {
  const Tensor t = counted({2, 3}).transpose(0, 1);
  const Tensor flat = t.reshape({6});
  EXPECT_FALSE(flat.shares_storage(t));
  EXPECT_EQ(flat.to_vector<float>(), (Floats{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(t.reshape({1, 3, 1, 2}).to_vector<float>(), flat.to_vector<float>());
}

TEST(Tensor, ReshapeOfNothingAndOfScalars) {
  EXPECT_EQ(zeros({0, 3}).reshape({3, 0}).shape(), (Shape{3, 0}));
  EXPECT_EQ(zeros({1, 1}).reshape({}).shape(), Shape{});
  EXPECT_EQ(full({}, 2.0).reshape({1, 1}).item(), 2.0);
}

TEST(Tensor, ReshapeRefusesAnotherCount) {
  const Tensor x = zeros({2, 3});
  expect_error([&] { x.reshape({4, 2}); }, {"reshape", "(2, 3)", "6", "(4, 2)"});
  expect_error([&] { x.reshape({-1, -1}); }, {"reshape", "more than one"});
  expect_error([&] { x.reshape({4, -1}); }, {"reshape"});
}

TEST(Tensor, ContiguousIsItselfOrACopy) {
  const Tensor x = counted({2, 3});
  EXPECT_TRUE(x.contiguous().shares_storage(x));
  const Tensor t = x.transpose(0, 1).contiguous();
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(t.data<float>()[1], 3.0f);
  EXPECT_TRUE(x.slice(0, 1, 2).is_contiguous()) << "a stride along an extent of 1 is free";
  EXPECT_TRUE(x.transpose(0, 1).slice(0, 0, 0).is_contiguous()) << "nothing is contiguous";
}

TEST(Tensor, CopyBetweenAnyStrides) {
  const Tensor x = counted({3, 4}), y = zeros({4, 3});
  copy(y.transpose(0, 1).slice(1, 1, 3), x.slice(1, 1, 3));
  EXPECT_EQ(y.to_vector<float>(), (Floats{0, 0, 0, 1, 5, 9, 2, 6, 10, 0, 0, 0}));
  expect_error([&] { copy(y, x); }, {"copy", "(3, 4)", "(4, 3)"});
}

TEST(Tensor, DataOfAnotherDtypeIsRefused) {
  const Tensor x = zeros({2});
  expect_error([&] { x.data<double>(); }, {"f32", "f64"});
  expect_error([&] { x.to_vector<int32_t>(); }, {"f32", "i32"});
  expect_error([&] { x.item(); }, {"item", "(2)"});
}

TEST(Tensor, BorrowedMemoryIsKeptAlive) {
  auto memory = std::make_shared<Floats>(Floats{1, 2, 3});
  const std::weak_ptr<Floats> watch = memory;
  Tensor x = Tensor::borrow(memory->data(), {3}, DType::f32, kCpu, memory);
  memory.reset();
  EXPECT_EQ(x.slice(0, 1, 2).item(), 2.0);
  x = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Tensor, FactoriesOnTheCurrentContext) {
  Context context(kCpu, 3);
  const ContextScope scope(context);
  const Tensor a = uniform({1000}, -2.0, 3.0);
  for (const float x : a.to_vector<float>()) ASSERT_TRUE(x >= -2.0f && x < 3.0f);
  EXPECT_NE(a.to_vector<float>(), uniform({1000}, -2.0, 3.0).to_vector<float>());
  for (const int32_t x : random_integers({1000}, 7).to_vector<int32_t>()) {
    ASSERT_TRUE(x >= 0 && x < 7);
  }
  Context again(kCpu, 3);
  const ContextScope same_seed(again);
  EXPECT_EQ(a.to_vector<float>(), uniform({1000}, -2.0, 3.0).to_vector<float>());
  expect_error([] { from_vector(Floats{1, 2}, {3}); }, {"from_vector", "2", "(3)"});
  expect_error([] { zeros({-1}); }, {"negative"});
  expect_error([] { random_integers({2}, 0); }, {"random_integers", "bound is 0"});
}

TEST(Tensor, CudaIsRefusedWhereThereIsNone) {
  if (kBuiltWithCuda) GTEST_SKIP() << "this build has CUDA code";
  expect_error([] { Context context(Device{DeviceType::cuda, 0}); }, {"CUDA", "device = cpu"});
}

}  // namespace
}  // namespace quern
