// SwiGLU on the GPU against the CPU in double.
#include "kernels/swiglu.h"

#include "gpu/reference.h"

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
  kernels::cpu::swiglu_backward<double>(d_gate_up.data(), nullptr, widen(gate_up).data(),
                                        widen(dy).data(), rows, F, {});

  DeviceBuffer<T> device_gate_up(gate_up, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(rows * F, shift), device_grad(rows * 2 * F, shift);
  const auto forward = run_twice(device_y, [&] {
    kernels::cuda::swiglu_forward(device_y.get(), device_gate_up.get(), rows, F, Stream{});
  });
  // exp, a division and two products in float: 8 roundings at most. The derivative of silu has a
  // zero near -1.28, where its terms (up to 16) cancel.
  expect_near(forward, y, storage_error<T>() + 5e-7, 1e-30);
  const auto backward = run_twice(device_grad, [&] {
    kernels::cuda::swiglu_backward<T>(device_grad.get(), nullptr, device_gate_up.get(),
                                      device_dy.get(), rows, F, Stream{});
  });
  expect_near(backward, d_gate_up, storage_error<T>() + 1e-6, 1e-5);
  kernels::cuda::swiglu_backward<T>(device_gate_up.get(), nullptr, device_gate_up.get(),
                                    device_dy.get(), rows, F, Stream{});  // in place
  expect_same_bits(device_gate_up.download(), backward);

  device_gate_up.upload(gate_up);
  device_grad.poison();
  kernels::cuda::swiglu_backward(device_grad.get(), device_dy.get(), device_gate_up.get(),
                                 device_dy.get(), rows, F, Stream{});
  expect_same_bits(device_grad.download(), backward);
  expect_same_bits(device_dy.download(), forward);
  device_grad.expect_guards_intact();
  device_dy.expect_guards_intact();
}

TEST_F(SwigluGpu, AnySize) {
  const int64_t sizes[][2] = {{0, 4},     {1, 1},      {1, 31},   {33, 33},    {3, 1024},
                              {31, 1025}, {257, 1376}, {5, 4864}, {1031, 3072}};
  for (const auto& [rows, F] : sizes) {
    for (const int64_t shift : {0, 1}) {
      check<float>(rows, F, shift);
      check<bfloat16>(rows, F, shift);
    }
  }
}

// Gates whose exponential overflows or vanishes, and NaN gates.
template <class T>
void check_extremes() {
  const int64_t F = 16;
  std::vector<T> gate_up(2 * F, T(1.5f));
  const float gates[] = {0.0f,   80.0f, -80.0f, 89.0f,    -89.0f,    127.0f, -127.0f, 1e10f,
                         -1e10f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN,    1e-38f,  -1e-38f};
  for (size_t i = 0; i < F; ++i) gate_up[i] = T(gates[i]);
  const std::vector<T> dy(F, T(0.5f));
  std::vector<double> y(F), d_gate_up(2 * F);
  kernels::cpu::swiglu_forward<double>(y.data(), widen(gate_up).data(), 1, F, {});
  kernels::cpu::swiglu_backward<double>(d_gate_up.data(), nullptr, widen(gate_up).data(),
                                        widen(dy).data(), 1, F, {});
  // 3e38 times 1.5 is beyond the range of T.
  y[9] = INFINITY;
  DeviceBuffer<T> device_gate_up(gate_up), device_dy(dy), device_y(F), device_grad(2 * F);
  const auto forward = run_twice(device_y, [&] {
    kernels::cuda::swiglu_forward(device_y.get(), device_gate_up.get(), 1, F, Stream{});
  });
  // Results below 1e-30 may be zero: an exponential of 16-bit values may be flushed to zero.
  expect_near(forward, y, storage_error<T>() + 1e-6, 1e-30);
  const auto backward = run_twice(device_grad, [&] {
    kernels::cuda::swiglu_backward<T>(device_grad.get(), nullptr, device_gate_up.get(),
                                      device_dy.get(), 1, F, Stream{});
  });
  expect_near(backward, d_gate_up, storage_error<T>() + 1e-6, 1e-30);
}

TEST_F(SwigluGpu, Extremes) {
  check_extremes<float>();
  check_extremes<bfloat16>();
}

}  // namespace
}  // namespace quern::test
