// The pointwise family against the CPU's. Both compute in FP32 with library functions of a few
// units in the last place, which 1 + tanh and the like magnify where they cancel: hence 32 units
// relative, and 1e-6 absolute for inputs below 2. A 16-bit result may then round to the neighbour.
#include "kernels/pointwise.h"

#include "gpu/compare.h"

namespace quern::test {
namespace {

class PointwiseGpu : public GpuTest {};

template <class F, class T>
void check_op(F f, double low, double high, int64_t shift) {
  const double relative = 32 * 0x1p-24 + (sizeof(T) == 2 ? 2 * rounding<T>() : 0.0);
  for (const int64_t n : {0, 1, 31, 33, 1025, (1 << 18) + 3}) {
    const auto x = random_values<T>(n, 1, low, high);
    const auto dy = random_values<T>(n, 2);
    std::vector<T> y(x.size()), dx(x.size());
    kernels::cpu::pointwise_forward(y.data(), x.data(), {}, n, f, {});
    kernels::cpu::pointwise_backward(dx.data(), x.data(), {}, y.data(), dy.data(), n, f, {});

    DeviceBuffer<T> device_x(x, shift), device_saved_y(y, shift), device_dy(dy, shift);
    DeviceBuffer<T> device_y(n, shift), device_dx(n, shift);
    const auto actual_y = run_twice(device_y, [&] {
      kernels::cuda::pointwise_forward(device_y.get(), device_x.get(), {}, n, f, {});
    });
    expect_close(actual_y, y, relative, 1e-6);
    const T* saved_x = F::kSaved == kernels::Saved::input ? device_x.get() : nullptr;
    const T* saved_y = F::kSaved == kernels::Saved::output ? device_saved_y.get() : nullptr;
    const auto actual_dx = run_twice(device_dx, [&] {
      kernels::cuda::pointwise_backward(device_dx.get(), saved_x, {}, saved_y, device_dy.get(), n,
                                        f, {});
    });
    expect_close(actual_dx, dx, relative, 1e-6);
    device_x.expect_guards_intact();
  }
}

template <class F>
void check(F f, double low = -2.0, double high = 2.0) {
  for (const int64_t shift : {0, 1}) {
    check_op<F, float>(f, low, high, shift);
    check_op<F, bfloat16>(f, low, high, shift);
    check_op<F, float16>(f, low, high, shift);
  }
}

// The family's own list drives this test, so a new functor is checked automatically.
TEST_F(PointwiseGpu, EveryFunctor) {
  const auto check_at = []<size_t I>(std::integral_constant<size_t, I>) {
    SCOPED_TRACE(I);
    check(std::variant_alternative_t<I, kernels::PointwiseOp>{}, 0.25, 2.0);
  };
  [&]<size_t... I>(std::index_sequence<I...>) {
    (check_at(std::integral_constant<size_t, I>()), ...);
  }
  (std::make_index_sequence<std::variant_size_v<kernels::PointwiseOp>>());
}
TEST_F(PointwiseGpu, Exp) {
  check(kernels::Exp{});
}
TEST_F(PointwiseGpu, Log) {
  check(kernels::Log{}, 0.25, 2.0);  // 1 / x below 4: the absolute part stays meaningful
}
TEST_F(PointwiseGpu, Tanh) {
  check(kernels::Tanh{});
}
TEST_F(PointwiseGpu, Sigmoid) {
  check(kernels::Sigmoid{});
}
TEST_F(PointwiseGpu, Relu) {
  check(kernels::Relu{});
}
TEST_F(PointwiseGpu, Silu) {
  check(kernels::Silu{});
}
TEST_F(PointwiseGpu, GeluTanh) {
  check(kernels::GeluTanh{});
}
TEST_F(PointwiseGpu, GeluErf) {
  check(kernels::GeluErf{});
}
TEST_F(PointwiseGpu, Pow) {
  check(kernels::Pow{2.0});
  check(kernels::Pow{3.0}, 0.25, 2.0);
  check(kernels::Pow{-0.5}, 0.25, 2.0);
}
TEST_F(PointwiseGpu, Sqrt) {
  check(kernels::Sqrt{}, 0.25, 2.0);
}
TEST_F(PointwiseGpu, Scale) {
  check(kernels::Scale{-1.7, 0.3});
}

// Strided rows of x give the result of packed ones, except for products and sums that the compiler
// may fuse in one of the two: a few units in the last place, and in 16 bits the neighbour.
template <class T>
void check_rows(int64_t rows, int64_t cols, int64_t pitch, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " of " << pitch << ", " << shift);
  const auto wide = random_values<T>(rows * pitch, 1);
  const auto dy = random_values<T>(rows * cols, 2);
  std::vector<T> packed;
  for (int64_t i = 0; i < rows * cols; ++i) {
    packed.push_back(wide[static_cast<size_t>(i / cols * pitch + i % cols)]);
  }
  const int64_t n = rows * cols;
  const kernels::Silu f;
  DeviceBuffer<T> x(wide, shift), x_packed(packed), device_dy(dy, shift);
  DeviceBuffer<T> y(n, shift), dx(n, shift), y_packed(n), dx_packed(n);
  const T* const none = nullptr;
  kernels::cuda::pointwise_forward(y_packed.get(), x_packed.get(), {}, n, f, {});
  kernels::cuda::pointwise_backward(dx_packed.get(), x_packed.get(), {}, none, device_dy.get(), n,
                                    f, {});
  const auto forward = [&] {
    kernels::cuda::pointwise_forward(y.get(), x.get(), {cols, pitch}, n, f, {});
  };
  const auto backward = [&] {
    kernels::cuda::pointwise_backward(dx.get(), x.get(), {cols, pitch}, none, device_dy.get(), n, f,
                                      {});
  };
  const double relative = 8 * 0x1p-24 + (sizeof(T) == 2 ? 2 * rounding<T>() : 0.0);
  expect_close(run_twice(y, forward), y_packed.download(), relative, 1e-6);
  expect_close(run_twice(dx, backward), dx_packed.download(), relative, 1e-6);
}

TEST_F(PointwiseGpu, RowsAtADistance) {
  const int64_t sizes[][3] = {
      {1, 8, 8}, {33, 31, 40}, {33, 64, 72}, {5, 64, 67}, {300, 1024, 2048}};
  for (const auto& [rows, cols, pitch] : sizes) {
    for (const int64_t shift : {0, 1}) {
      check_rows<float>(rows, cols, pitch, shift);
      check_rows<bfloat16>(rows, cols, pitch, shift);
      check_rows<float16>(rows, cols, pitch, shift);
    }
  }
}

TEST_F(PointwiseGpu, NanAndInfinityPass) {
  const std::vector<float> x = {NAN, INFINITY, -INFINITY, 0.0f};
  std::vector<float> y(4);
  kernels::cpu::pointwise_forward(y.data(), x.data(), {}, 4, kernels::Relu{}, {});
  DeviceBuffer<float> device_x(x), device_y(4);
  kernels::cuda::pointwise_forward(device_y.get(), device_x.get(), {}, 4, kernels::Relu{}, {});
  expect_close(device_y.download(), y, 0.0, 0.0);
}

TEST_F(PointwiseGpu, InPlace) {
  const auto x = random_values<bfloat16>(1025, 5);
  std::vector<bfloat16> y(x.size());
  kernels::cpu::pointwise_forward(y.data(), x.data(), {}, 1025, kernels::Relu{}, {});
  DeviceBuffer<bfloat16> device(x);
  kernels::cuda::pointwise_forward(device.get(), device.get(), {}, 1025, kernels::Relu{}, {});
  expect_same_bits(device.download(), y);
}

}  // namespace
}  // namespace quern::test
