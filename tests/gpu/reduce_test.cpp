// Sums and maxima against the CPU's.
#include "kernels/reduce.h"

#include "compare.h"

namespace quern::test {
namespace {

using kernels::ReduceShape;

class ReduceGpu : public GpuTest {};

std::vector<ReduceShape> shapes() {
  std::vector<ReduceShape> all;
  for (const int64_t n : {1, 31, 33, 1025}) {
    all.push_back({3, n, 1});
    all.push_back({3, n, 5});
    all.push_back({2, n, 64});
  }
  all.push_back({1, 1 << 20, 1});  // everything, by one block
  all.push_back({1, 40000, 96});   // a bias gradient
  all.push_back({20000, 4, 8});
  all.push_back({100000, 3, 1});
  all.push_back({5000, 64, 1});
  return all;
}

template <class T>
void check_sum(const ReduceShape& s, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << s.outer << " x " << s.n << " x " << s.inner);
  const auto x = random_values<T>(s.outer * s.n * s.inner, 1);
  const auto dy = random_values<T>(s.outer * s.inner, 2);
  const double scale = 0.37;
  std::vector<T> y(dy.size()), dx(x.size());
  kernels::cpu::sum_forward(y.data(), x.data(), s, scale, {});
  kernels::cpu::sum_backward(dx.data(), dy.data(), s, scale, {});
  DeviceBuffer<T> device_x(x, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(s.outer * s.inner, shift), device_dx(s.outer * s.n * s.inner, shift);
  const auto actual = run_twice(
      device_y, [&] { kernels::cuda::sum_forward(device_y.get(), device_x.get(), s, scale, {}); });
  // n terms of size at most 2 in another order: each addition rounds partial sums of a few units.
  // A 16-bit result may then round to the neighbour.
  const double neighbour = sizeof(T) == 2 ? 2 * rounding<T>() : 0.0;
  expect_close(actual, y, neighbour + 2 * 0x1p-24, 4 * 0x1p-24 * static_cast<double>(s.n));
  expect_same_bits(
      run_twice(
          device_dx,
          [&] { kernels::cuda::sum_backward(device_dx.get(), device_dy.get(), s, scale, {}); }),
      dx);  // one product
}

TEST_F(ReduceGpu, Sum) {
  for (const ReduceShape& s : shapes()) {
    for (const int64_t shift : {0, 1}) {
      check_sum<float>(s, shift);
      check_sum<bfloat16>(s, shift);
      check_sum<float16>(s, shift);
    }
  }
}

TEST_F(ReduceGpu, EmptySumIsZero) {
  DeviceBuffer<float> x(int64_t{0}), y(6);
  kernels::cuda::sum_forward(y.get(), x.get(), {2, 0, 3}, 1.0, {});
  EXPECT_EQ(y.download(), std::vector<float>(6, 0.0f));
  DeviceBuffer<float> rows(2);
  kernels::cuda::sum_forward(rows.get(), x.get(), {2, 0, 1}, 1.0, {});
  EXPECT_EQ(rows.download(), std::vector<float>(2, 0.0f));
  kernels::cuda::sum_forward(y.get(), x.get(), {0, 4, 3}, 1.0, {});  // nothing to write
}

template <class T>
void check_max(const ReduceShape& s, const std::vector<T>& x, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << s.outer << " x " << s.n << " x " << s.inner);
  const auto dy = random_values<T>(s.outer * s.inner, 2);
  std::vector<T> y(dy.size()), dx(x.size());
  std::vector<int64_t> index(dy.size());
  kernels::cpu::max_forward(y.data(), index.data(), x.data(), s, {});
  kernels::cpu::max_backward(dx.data(), dy.data(), index.data(), s, {});
  DeviceBuffer<T> device_x(x, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(s.outer * s.inner, shift), device_dx(s.outer * s.n * s.inner, shift);
  DeviceBuffer<int64_t> device_index(s.outer * s.inner);
  const auto actual = run_twice(device_y, [&] {
    kernels::cuda::max_forward(device_y.get(), device_index.get(), device_x.get(), s, {});
  });
  expect_close(actual, y, 0.0, 0.0);
  EXPECT_EQ(device_index.download(), index);
  device_index.expect_guards_intact();
  expect_same_bits(run_twice(device_dx,
                             [&] {
                               kernels::cuda::max_backward(device_dx.get(), device_dy.get(),
                                                           device_index.get(), s, {});
                             }),
                   dx);
}

TEST_F(ReduceGpu, Max) {
  for (const ReduceShape& s : shapes()) {
    const int64_t n = s.outer * s.n * s.inner;
    for (const int64_t shift : {0, 1}) {
      check_max(s, random_values<float>(n, 1), shift);
      check_max(s, random_values<bfloat16>(n, 1), shift);  // has repeated maxima
      check_max(s, random_values<float16>(n, 1), shift);
    }
  }
}

TEST_F(ReduceGpu, MaxOfNanAndInfinity) {
  for (const ReduceShape s : {ReduceShape{2, 1025, 1}, ReduceShape{2, 33, 5}}) {
    auto x = random_values<float>(s.outer * s.n * s.inner, 1);
    x[17 * static_cast<size_t>(s.inner)] = NAN;
    x[20 * static_cast<size_t>(s.inner)] = NAN;  // the first NaN wins
    check_max(s, x, 0);
    check_max(s, std::vector<float>(x.size(), -INFINITY), 0);
  }
}

}  // namespace
}  // namespace quern::test
