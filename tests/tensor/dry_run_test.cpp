// A dry Context: allocations are counted, and nothing is touched.
#include <gtest/gtest.h>

#include "tensor/factory.h"

namespace quern {
namespace {

void expect_nothing_is_touched(const Device device) {
  Context context(device, kernels::cuda::kHopper);
  const ContextScope scope(context);
  const Allocator& allocator = *context.allocator(device);
  const int64_t before = allocator.stats().allocated;
  const int64_t count = int64_t{1} << 40;  // more than there is
  const Tensor x = uniform({count}, 0.0, 1.0);
  EXPECT_EQ(allocator.stats().allocated - before, 4 * count);
  const Tensor y = x.to(DType::bf16);
  EXPECT_EQ(allocator.stats().allocated - before, 6 * count);
  fill(y, 1.0);
  copy(x, y);
  EXPECT_EQ(x.slice(0, 7, 8).item(), 0.0);
  EXPECT_EQ(y.slice(0, 0, 3).to(DType::f32).to_vector<float>(), std::vector<float>(3));
  EXPECT_EQ(from_vector(std::vector<float>{1.0f}, {1}).item(), 0.0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(x.raw_data()) % 256, 0u);
  context.synchronize();
}

TEST(DryRun, TouchesNoMemory) {
  expect_nothing_is_touched(kCpu);
}

TEST(DryRun, NeedsNoGpu) {
  expect_nothing_is_touched({DeviceType::cuda, 0});
}

TEST(DryRun, AGpusAllocatorHasTheLibrarysWorkspace) {
  const Device gpu{DeviceType::cuda, 0};
  Context context(gpu, kernels::cuda::kHopper);
  EXPECT_EQ(context.allocator(gpu)->stats().allocated, int64_t{32} << 20);
  EXPECT_EQ(context.allocator(kCpu)->stats().allocated, 0);
  EXPECT_THROW(context.allocator({DeviceType::cuda, 1}), Error);
}

}  // namespace
}  // namespace quern
