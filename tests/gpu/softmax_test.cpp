// Softmax and log-softmax against the CPU's: rows for a warp, a block, and beyond one block.
#include "kernels/softmax.h"

#include "compare.h"

namespace quern::test {
namespace {

class SoftmaxGpu : public GpuTest {};

template <class T>
using Forward = void (*)(T*, const T*, int64_t, int64_t, kernels::cuda::Stream);
template <class T>
using Backward = void (*)(T*, const T*, const T*, int64_t, int64_t, kernels::cuda::Stream);

template <class T>
double largest(const std::vector<T>& values) {
  double most = 0.0;
  for (const T v : values) most = std::max(most, std::abs(double{static_cast<float>(v)}));
  return most;
}

template <class T>
void check(int64_t rows, int64_t cols, bool log, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << cols << (log ? ", log" : ""));
  const auto x = random_values<T>(rows * cols, 1, -6.0, 6.0);
  const auto dy = random_values<T>(rows * cols, 2);
  std::vector<T> y(x.size()), dx(x.size());
  if (log) {
    kernels::cpu::log_softmax_forward(y.data(), x.data(), rows, cols, {});
    kernels::cpu::log_softmax_backward(dx.data(), y.data(), dy.data(), rows, cols, {});
  } else {
    kernels::cpu::softmax_forward(y.data(), x.data(), rows, cols, {});
    kernels::cpu::softmax_backward(dx.data(), y.data(), dy.data(), rows, cols, {});
  }
  const Forward<T> forward =
      log ? &kernels::cuda::log_softmax_forward<T> : &kernels::cuda::softmax_forward<T>;
  const Backward<T> backward =
      log ? &kernels::cuda::log_softmax_backward<T> : &kernels::cuda::softmax_backward<T>;
  DeviceBuffer<T> device_x(x, shift), device_saved(y, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(rows * cols, shift), device_dx(rows * cols, shift);
  // Sums of up to 1e5 terms in another order, relative 1e-5; log adds the rounding of values near
  // 12, 4e-6. A 16-bit result may round to the neighbour. The backward subtracts a sum, so there
  // the error is relative to the largest gradient.
  const double relative = 1e-5 + (sizeof(T) == 2 ? 2 * rounding<T>() : 0.0);
  expect_close(
      run_twice(device_y, [&] { forward(device_y.get(), device_x.get(), rows, cols, {}); }), y,
      relative, log ? 4e-6 : 0.0);
  expect_close(
      run_twice(
          device_dx,
          [&] { backward(device_dx.get(), device_saved.get(), device_dy.get(), rows, cols, {}); }),
      dx, relative, 1e-5 * largest(dx));
}

TEST_F(SoftmaxGpu, AnySize) {
  const int64_t sizes[][2] = {{0, 5},     {5, 0},     {1, 1},     {7, 31},   {300, 33},
                              {9, 256},   {9, 264},   {33, 1025}, {4, 8192}, {3, 8200},
                              {3, 16384}, {2, 16385}, {2, 50257}, {70000, 8}};
  for (const auto& [rows, cols] : sizes) {
    for (const bool log : {false, true}) {
      for (const int64_t shift : {0, 1}) {
        check<float>(rows, cols, log, shift);
        check<bfloat16>(rows, cols, log, shift);
      }
    }
  }
}

TEST_F(SoftmaxGpu, MinusInfinity) {
  for (const int64_t cols : {5, 64, 1025, 20000}) {
    std::vector<float> x(static_cast<size_t>(3 * cols), -INFINITY);
    x[1] = 2.0f;  // row 0: one finite element
    for (int64_t c = 0; c < cols; c += 2) x[static_cast<size_t>(2 * cols + c)] = 1.0f;
    std::vector<float> y(x.size()), log_y(x.size());  // row 1 has none
    kernels::cpu::softmax_forward(y.data(), x.data(), 3, cols, {});
    kernels::cpu::log_softmax_forward(log_y.data(), x.data(), 3, cols, {});
    DeviceBuffer<float> device_x(x), device_y(3 * cols);
    kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 3, cols, {});
    const auto actual = device_y.download();
    expect_close(actual, y, 1e-5, 0.0);
    for (int64_t c = 0; c < cols; ++c) EXPECT_EQ(actual[static_cast<size_t>(cols + c)], 0.0f);
    kernels::cuda::log_softmax_forward(device_y.get(), device_x.get(), 3, cols, {});
    expect_close(device_y.download(), log_y, 1e-5, 4e-6);
  }
}

TEST_F(SoftmaxGpu, NanStaysInItsRow) {
  for (const int64_t cols : {33, 1025, 20000}) {
    auto x = random_values<float>(2 * cols, 1);
    x[3] = NAN;
    DeviceBuffer<float> device_x(x), device_y(2 * cols);
    kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 2, cols, {});
    const auto y = device_y.download();
    for (int64_t c = 0; c < cols; ++c) {
      EXPECT_TRUE(std::isnan(y[static_cast<size_t>(c)]));
      EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(cols + c)]));
    }
  }
}

}  // namespace
}  // namespace quern::test
