// Owners of streams, events, graphs and host memory. Their work needs a GPU: see tests/gpu.
#include "tensor/cuda_runtime.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <utility>

namespace quern::cuda {
namespace {

template <class T>
constexpr bool owns_alone() {
  return std::is_nothrow_destructible_v<T> && std::is_nothrow_move_constructible_v<T> &&
         std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T> &&
         !std::is_copy_assignable_v<T>;
}
static_assert(owns_alone<OwnedStream>());
static_assert(owns_alone<Event>());
static_assert(owns_alone<ExecutableGraph>());
static_assert(owns_alone<HostArray<int>>());

TEST(CudaRuntime, NothingIsOwnedByDefault) {
  EXPECT_FALSE(Event());
  EXPECT_FALSE(OwnedStream());
  EXPECT_EQ(Stream(OwnedStream()).handle, nullptr);
  Event().finish();
  OwnedStream().finish();
}

TEST(CudaRuntime, OrdinaryHostMemoryNeedsNoGpu) {
  HostArray<int> first = host_array<int>(3, false);
  for (size_t i = 0; i < 3; ++i) first[i] = static_cast<int>(i);
  HostArray<int> second;
  second = std::move(first);
  EXPECT_EQ(second[2], 2);
}

}  // namespace
}  // namespace quern::cuda
