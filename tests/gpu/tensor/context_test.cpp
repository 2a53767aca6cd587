// A Context's GPU and its memory.
#include "tensor/context.h"

#include <gtest/gtest.h>

#include <thread>

#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"

namespace quern {
namespace {

constexpr Device kFirst{DeviceType::cuda, 0}, kSecond{DeviceType::cuda, 1};

class ContextGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
  // Allocates and computes on the current Context's GPU.
  static float sum_of_ones() {
    const Tensor ones = full({1000}, 1.0);
    return full({1000}, 1.0).to_vector<float>()[999] + ones.to_vector<float>()[0];
  }
};

TEST_F(ContextGpu, AScopeSelectsItsGpu) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "one GPU";
  Context first(kFirst), second(kSecond);
  const ContextScope scope(first);  // the second one's constructor has selected its GPU
  EXPECT_EQ(sum_of_ones(), 2.0f);
  {
    const ContextScope inner(second);
    EXPECT_EQ(sum_of_ones(), 2.0f);
  }
  EXPECT_EQ(sum_of_ones(), 2.0f);
  std::thread([&] {  // where CUDA begins with the first GPU
    const ContextScope other(second);
    EXPECT_EQ(sum_of_ones(), 2.0f);
  })
      .join();
}

TEST_F(ContextGpu, ReturnsItsMemory) {
  int64_t free_after[2] = {};
  for (int64_t& free : free_after) {
    for (int i = 0; i < 4; ++i) const Context context(kFirst);
    free = cuda::device_info(0).free_bytes;
  }
  EXPECT_EQ(free_after[0], free_after[1]);
}

}  // namespace
}  // namespace quern
