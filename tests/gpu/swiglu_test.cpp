// SwiGLU on the GPU against the CPU in double.
#include "kernels/swiglu.h"

#include "reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

class SwigluGpu : public GpuTest {};

template <class T>
void check(int64_t rows, int64_t F, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << F << ", shift " << shift);
  auto gate_up = random_values<T>(rows * 2 * F, 1, -8.0, 8.0);
  if (!gate_up.empty()) gate_up[0] = T(-120.0f);  // exp(120) overflows: silu must be 0, not NaN
  const auto dy = random_values<T>(rows * F, 2);
  std::vector<double> y(dy.size()), d_gate_up(gate_up.size());
  kernels::cpu::swiglu_forward<double>(y.data(), widen(gate_up).data(), rows, F, {});
  kernels::cpu::swiglu_backward<double>(d_gate_up.data(), widen(gate_up).data(), widen(dy).data(),
                                        rows, F, {});

  DeviceBuffer<T> device_gate_up(gate_up, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(rows * F, shift), device_grad(rows * 2 * F, shift);
  const auto forward = run_twice(device_y, [&] {
    kernels::cuda::swiglu_forward(device_y.get(), device_gate_up.get(), rows, F, Stream{});
  });
  // exp, a division and two products in float: 8 roundings at most. The derivative of silu has a
  // zero near -1.28, where its terms (up to 16) cancel.
  expect_near(forward, y, storage_error<T>() + 5e-7, 1e-30);
  const auto backward = run_twice(device_grad, [&] {
    kernels::cuda::swiglu_backward(device_grad.get(), device_gate_up.get(), device_dy.get(), rows,
                                   F, Stream{});
  });
  expect_near(backward, d_gate_up, storage_error<T>() + 1e-6, 1e-5);
  kernels::cuda::swiglu_backward(device_gate_up.get(), device_gate_up.get(), device_dy.get(), rows,
                                 F, Stream{});  // in place
  expect_same_bits(device_gate_up.download(), backward);
}

TEST_F(SwigluGpu, AnySize) {
  const int64_t sizes[][2] = {{0, 4},    {1, 1},     {1, 31},     {33, 33},
                              {3, 1024}, {31, 1025}, {257, 1376}, {5, 4864}};
  for (const auto& [rows, F] : sizes) {
    for (const int64_t shift : {0, 1}) {
      check<float>(rows, F, shift);
      check<bfloat16>(rows, F, shift);
    }
  }
}

}  // namespace
}  // namespace quern::test
