// Misuse of tensors, the allocator and graphs, and devices that this build cannot use.
#include <gtest/gtest.h>

#include "support/files.h"
#include "tensor/factory.h"
#include "tensor/graph.h"
#include "tensor/visit.h"

namespace quern {
namespace {

using namespace testing_support;

constexpr Device kGpu{DeviceType::cuda, 0};

// A handle alone: nothing is read from it.
Tensor on_gpu(const Shape& shape, DType dtype = DType::f32) {
  static double place = 0.0;
  return Tensor::borrow(&place, shape, dtype, kGpu);
}

TEST(TensorRefusals, Shapes) {
  const Tensor x = zeros({2, 3});
  expect_error([&] { x.slice(1, -1, 2); }, {"slice: -1 to 2"});
  expect_error([] { zeros({0, 3}).reshape({0, -1}); }, {"reshape", "(0, -1)"});
  expect_error([&] { fill(x.transpose(0, 1), 1.0); }, {"fill: expected a contiguous tensor"});
}

TEST(TensorRefusals, Dtypes) {
  expect_error([] { uniform({2}, 0.0, 1.0, DType::i32); },
               {"uniform: dtype i32 on cpu is not supported, expected f32 or bf16 or f64"});
}

TEST(TensorRefusals, AGpuInABuildWithoutCuda) {
  if (kBuiltWithCuda) GTEST_SKIP() << "this build has CUDA code";
  expect_error([] { fill(on_gpu({2}), 0.0); }, {"no CUDA code, and a tensor is on cuda:0"});
  expect_error([] { Tensor::empty({2}, DType::f32, kGpu); },
               {"a tensor on cuda:0 was asked for in a context of cpu"});
}

TEST(TensorRefusals, AGraphOfTheCpu) {
  expect_error([] { Graph([] {}); }, {"graph: the current device is the CPU, expected a GPU"});
}

TEST(Tensor, AReshapeJoinsAcrossAnOnlyElement) {
  const Tensor x = zeros({2, 1, 3, 1}).slice(2, 0, 3);
  EXPECT_TRUE(x.reshape({6}).shares_storage(x));
  const Tensor rows = zeros({2, 1, 4}).slice(2, 0, 3);
  EXPECT_FALSE(rows.reshape({6}).shares_storage(rows));
}

TEST(Tensor, UsesAreRecordedOrIgnored) {
  int memory = 0;
  EXPECT_NO_THROW(Tensor::borrow(&memory, {1}, DType::i32, kCpu).record_use({}));
  EXPECT_NO_THROW(zeros({2}).record_use({})) << "the CPU has one stream";
}

// Between devices a copy to strided memory is staged there.
TEST(Tensor, ACopyToStridesOfAnotherDeviceIsDry) {
  Context context(kGpu, kernels::cuda::kHopper);
  const ContextScope scope(context);
  const Tensor x = Tensor::empty({4, 6}, DType::f32, kGpu);
  const int64_t before = context.allocator()->stats().allocated;
  context.allocator()->reset_peak();
  copy(x.slice(1, 0, 3), Tensor::empty({4, 3}, DType::f32, kCpu));
  EXPECT_EQ(context.allocator()->stats().peak_allocated - before, 4 * 3 * 4);
}

TEST(OpOptions, EqualInEveryMember) {
  const OpOptions options;
  OpOptions precision = options, products = options, order = options;
  precision.precision = Precision::bf16;
  products.fp32_products = Fp32Products::fma;
  order.deterministic = false;
  EXPECT_EQ(options, OpOptions{});
  EXPECT_NE(options, precision);
  EXPECT_NE(options, products);
  EXPECT_NE(options, order);
}

TEST(Allocator, IgnoresWhatItDoesNotOwn) {
  const auto allocator = std::make_shared<Allocator>(host_memory());
  int elsewhere = 0;
  allocator->release(&elsewhere);
  allocator->pin_pool();  // the common pool stays as it is
  allocator->release(allocator->allocate(1000, "x"));
  allocator->release_cached();
  EXPECT_EQ(allocator->stats().segments, 0);
}

TEST(Allocator, LiveIsSortedByAddressAmongEqualSizes) {
  const auto allocator = std::make_shared<Allocator>(host_memory());
  std::vector<void*> data;
  for (int i = 0; i < 3; ++i) data.push_back(allocator->allocate(1000, "x"));
  const std::vector<Allocation> live = allocator->live();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(live[i].data, data[i]);
  for (void* each : data) allocator->release(each);
}

}  // namespace
}  // namespace quern
