// weighted_sum on the GPU against the CPU in double.
#include "kernels/weighted_sum.h"

#include "gpu/reference.h"

namespace quern::test {
namespace {

using kernels::cuda::Stream;

class WeightedSumGpu : public GpuTest {};

template <class T>
void check(int64_t rows, int64_t C, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << C << ", shift " << shift);
  const auto x = random_values<T>(rows * C, 1);
  const auto w = random_values<T>(C, 2);
  const auto dy = random_values<T>(rows, 3);
  std::vector<double> y(dy.size()), dx(x.size()), dw(w.size());
  std::vector<std::byte> cpu_scratch(
      static_cast<size_t>(kernels::cpu::weighted_sum_backward_scratch(rows, C, {})));
  kernels::cpu::weighted_sum_forward<double>(y.data(), widen(x).data(), widen(w).data(), rows, C,
                                             {});
  kernels::cpu::weighted_sum_backward<double>(dx.data(), dw.data(), widen(dy).data(),
                                              widen(x).data(), widen(w).data(), rows, C, false,
                                              cpu_scratch.data(), {});

  DeviceBuffer<T> device_x(x, shift), device_w(w, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(rows, shift), device_dx(rows * C, shift);
  DeviceBuffer<float> device_dw(C);
  DeviceBuffer<uint8_t> scratch(kernels::cuda::weighted_sum_backward_scratch(rows, C, Stream{}));
  const auto forward = run_twice(device_y, [&] {
    kernels::cuda::weighted_sum_forward(device_y.get(), device_x.get(), device_w.get(), rows, C,
                                        Stream{});
  });
  // Terms of up to 4 that cancel: each addition rounds a partial sum of a few hundred at most.
  const double terms = static_cast<double>(C);
  expect_near(forward, y, storage_error<T>() + 4e-6, 1e-6 * std::sqrt(terms) + 1e-8 * terms);
  const auto run = [&](T* dx_target, float* dw_target, bool add) {
    kernels::cuda::weighted_sum_backward(dx_target, dw_target, device_dy.get(), device_x.get(),
                                         device_w.get(), rows, C, add, scratch.get(), Stream{});
  };
  const auto actual_dx = run_twice(device_dx, [&] { run(device_dx.get(), nullptr, false); });
  expect_near(actual_dx, dx, storage_error<T>() + 6e-8, 0.0);  // one product
  const auto actual_dw = run_twice(device_dw, [&] { run(nullptr, device_dw.get(), false); });
  expect_near(actual_dw, dw, 4e-6, 1e-6 * static_cast<double>(rows));
  scratch.expect_guards_intact();

  const auto before = random_values<float>(C, 4);
  device_dw.upload(before);
  run(device_dx.get(), device_dw.get(), true);
  auto added = before;
  for (size_t i = 0; i < added.size(); ++i) added[i] += actual_dw[i];  // one rounding, the same
  expect_same_bits(device_dw.download(), added);
}

TEST_F(WeightedSumGpu, AnySize) {
  const int64_t sizes[][2] = {{0, 5},    {1, 1},     {31, 31},    {33, 33},
                              {5, 1024}, {31, 1025}, {1025, 384}, {3, 20001}};
  for (const auto& [rows, C] : sizes) {
    for (const int64_t shift : {0, 1}) {
      check<float>(rows, C, shift);
      check<bfloat16>(rows, C, shift);
    }
  }
}

}  // namespace
}  // namespace quern::test
