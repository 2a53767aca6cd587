// Every case of the table of ops on the GPU against the CPU, f32 and bf16: the whole path through
// dispatch, strides, scratch memory and the gradient rule.
#include <gtest/gtest.h>

#include "support/op_cases.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

using namespace testing_support;

void compare_devices(DType dtype, double relative) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  Context gpu(Device{DeviceType::cuda, 0});
  for (const OpCase& c : op_cases()) {
    SCOPED_TRACE(cat(c.op, ": ", c.label));
    const auto on_cpu = run_case(c, dtype);
    const ContextScope scope(gpu);
    const auto on_gpu = run_case(c, dtype), again = run_case(c, dtype);
    EXPECT_EQ(on_gpu, again) << "two runs differ";
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      EXPECT_LE(distance(on_gpu[i], on_cpu[i]), relative * (norm(on_cpu[i]) + 1.0))
          << "result " << i;
    }
  }
}

// Sums in another order, exp and tanh within 2 ulp: a few times 6e-8, magnified by exponents to 4.
TEST(OpsGpu, F32AgreesWithTheCpu) {
  compare_devices(DType::f32, 4e-6);
}

// Such a difference may round to the neighbouring bf16 (4e-3) after each of the naive twins' ops.
TEST(OpsGpu, Bf16AgreesWithTheCpu) {
  compare_devices(DType::bf16, 2e-2);
}

}  // namespace
}  // namespace quern
