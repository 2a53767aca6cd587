// Softmax and log-softmax against the CPU's: rows for a warp, a block, and beyond one block.
#include "kernels/softmax.h"

#include "gpu/compare.h"

namespace quern::test {
namespace {

class SoftmaxGpu : public GpuTest {};

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
  kernels::cpu::softmax_forward(y.data(), x.data(), rows, cols, log, {});
  kernels::cpu::softmax_backward(dx.data(), y.data(), dy.data(), rows, cols, log, {});
  DeviceBuffer<T> device_x(x, shift), device_saved(y, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(rows * cols, shift), device_dx(rows * cols, shift);
  // Sums of up to 1e5 terms in another order, relative 1e-5; log adds the rounding of values near
  // 12, 4e-6. A 16-bit result may round to the neighbour. The backward subtracts a sum, so there
  // the error is relative to the largest gradient.
  const double relative = 1e-5 + (sizeof(T) == 2 ? 2 * rounding<T>() : 0.0);
  const auto forward = [&] {
    kernels::cuda::softmax_forward(device_y.get(), device_x.get(), rows, cols, log, {});
  };
  const auto backward = [&] {
    kernels::cuda::softmax_backward(device_dx.get(), device_saved.get(), device_dy.get(), rows,
                                    cols, log, {});
  };
  expect_close(run_twice(device_y, forward), y, relative, log ? 4e-6 : 0.0);
  expect_close(run_twice(device_dx, backward), dx, relative, 1e-5 * largest(dx));
}

TEST_F(SoftmaxGpu, InTwoPasses) {
  for (const int64_t cols : {1, 33, 1025, 5000}) {
    const int64_t rows = 7;
    const auto x = random_values<float>(rows * cols, 1, -6.0, 6.0);
    std::vector<float> y(x.size());
    kernels::cpu::softmax_online_forward(y.data(), x.data(), rows, cols, {});
    DeviceBuffer<float> device_x(x, 0), device_y(rows * cols, 0);
    const auto forward = [&] {
      kernels::cuda::softmax_online_forward(device_y.get(), device_x.get(), rows, cols, {});
    };
    expect_close(run_twice(device_y, forward), y, 1e-5, 0.0);  // as check()
  }
}

TEST_F(SoftmaxGpu, AnySize) {
  const int64_t sizes[][2] = {{0, 5},     {5, 0},     {1, 1},     {7, 31},    {300, 33},
                              {9, 256},   {9, 264},   {9, 512},   {9, 520},   {10, 1024},
                              {33, 1025}, {17, 1032}, {40, 4096}, {40, 5000}, {5, 5001},
                              {4, 8192},  {3, 8193},  {3, 8200},  {3, 16384}, {2, 16385},
                              {2, 16392}, {3, 32768}, {2, 32776}, {2, 50257}, {70000, 8}};
  for (const auto& [rows, cols] : sizes) {
    for (const bool log : {false, true}) {
      for (const int64_t shift : {0, 1}) {
        check<float>(rows, cols, log, shift);
        check<bfloat16>(rows, cols, log, shift);
      }
    }
  }
}

template <class T>
void check_minus_infinity(int64_t cols) {
  const double relative = 1e-5 + (sizeof(T) == 2 ? 2 * rounding<T>() : 0.0);  // as in check
  std::vector<T> x(static_cast<size_t>(3 * cols), T(-INFINITY));
  x[1] = T(2.0f);  // row 0: one finite element
  for (int64_t c = 0; c < cols; c += 2) x[static_cast<size_t>(2 * cols + c)] = T(1.0f);
  std::vector<T> y(x.size()), log_y(x.size());  // row 1 has none
  kernels::cpu::softmax_forward(y.data(), x.data(), 3, cols, false, {});
  kernels::cpu::softmax_forward(log_y.data(), x.data(), 3, cols, true, {});
  DeviceBuffer<T> device_x(x), device_y(3 * cols);
  kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 3, cols, false, {});
  const auto actual = device_y.download();
  expect_close(actual, y, relative, 0.0);
  for (int64_t c = 0; c < cols; ++c) {
    EXPECT_EQ(static_cast<float>(actual[static_cast<size_t>(cols + c)]), 0.0f);
  }
  kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 3, cols, true, {});
  expect_close(device_y.download(), log_y, relative, 4e-6);
}

TEST_F(SoftmaxGpu, MinusInfinity) {
  for (const int64_t cols : {5, 64, 520, 1025, 4096, 20000, 40000}) {
    check_minus_infinity<float>(cols);
    check_minus_infinity<bfloat16>(cols);
  }
}

template <class T>
void check_nan(int64_t cols) {
  auto x = random_values<T>(2 * cols, 1);
  x[3] = T(NAN);
  DeviceBuffer<T> device_x(x), device_y(2 * cols);
  kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 2, cols, false, {});
  const auto y = device_y.download();
  for (int64_t c = 0; c < cols; ++c) {
    EXPECT_TRUE(std::isnan(static_cast<float>(y[static_cast<size_t>(c)])));
    EXPECT_TRUE(std::isfinite(static_cast<float>(y[static_cast<size_t>(cols + c)])));
  }
}

TEST_F(SoftmaxGpu, NanStaysInItsRow) {
  for (const int64_t cols : {33, 64, 1025, 4096, 20000, 40000}) {
    check_nan<float>(cols);
    check_nan<bfloat16>(cols);
  }
}

// Logits of any size: a row's common part cancels exactly, before anything can overflow.
template <class T>
void check_equal_logits(float logit, int64_t cols) {
  SCOPED_TRACE(::testing::Message() << logit << ", " << cols << " columns");
  const std::vector<T> x(static_cast<size_t>(3 * cols), T(logit));
  const double uniform = 1.0 / static_cast<double>(cols);
  DeviceBuffer<T> device_x(x), device_y(3 * cols);
  kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 3, cols, false, {});
  const auto y = device_y.download();
  kernels::cuda::softmax_forward(device_y.get(), device_x.get(), 3, cols, true, {});
  const auto log_y = device_y.download();
  // A sum of ones is exact; a division or a logarithm, and the rounding of the result, are not.
  const double relative = 4 * rounding<float>() + (sizeof(T) == 2 ? rounding<T>() : 0.0);
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(static_cast<float>(y[i]), uniform, relative * uniform);
    ASSERT_NEAR(static_cast<float>(log_y[i]), std::log(uniform), -relative * std::log(uniform));
  }
}

TEST_F(SoftmaxGpu, LogitsOfAnySize) {
  for (const float logit : {1e4f, -1e10f, 1e30f, -3e38f, 3e38f}) {
    for (const int64_t cols : {40, 999, 5000, 40000}) {
      check_equal_logits<float>(logit, cols);
      check_equal_logits<bfloat16>(logit, cols);
    }
  }
}

}  // namespace
}  // namespace quern::test
