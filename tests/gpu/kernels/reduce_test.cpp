// Sums and maxima against the CPU's.
#include "kernels/reduce.h"

#include "gpu/compare.h"

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
  all.push_back({1, 1 << 20, 1});  // everything
  all.push_back({1, 40000, 96});   // a bias gradient
  all.push_back({1, 2048, 768});   // a norm's
  all.push_back({20000, 4, 8});
  all.push_back({100000, 3, 1});
  all.push_back({5000, 64, 1});
  return all;
}

// A sum, with or without squares, over poisoned and guarded scratch memory of the requested size.
template <class T>
std::vector<T> sum_on_gpu(DeviceBuffer<T>& y, DeviceBuffer<T>& x, const ReduceShape& s,
                          double scale, bool squares = false) {
  const kernels::cuda::Stream stream{};
  DeviceBuffer<uint8_t> scratch(kernels::cuda::sum_forward_scratch(s, stream));
  const auto sums = run_twice(y, [&] {
    scratch.poison();
    if (squares) {
      kernels::cuda::sum_squares_forward(y.get(), x.get(), s, scale, scratch.get(), stream);
    } else {
      kernels::cuda::sum_forward(y.get(), x.get(), s, scale, scratch.get(), stream);
    }
  });
  scratch.expect_guards_intact();
  return sums;
}

template <class T>
void check_sum(const ReduceShape& s, int64_t shift) {
  SCOPED_TRACE(::testing::Message() << s.outer << " x " << s.n << " x " << s.inner);
  const auto x = random_values<T>(s.outer * s.n * s.inner, 1);
  const auto dy = random_values<T>(s.outer * s.inner, 2);
  const double scale = 0.37;
  std::vector<T> y(dy.size()), dx(x.size());
  kernels::cpu::sum_forward(y.data(), x.data(), s, scale, nullptr, {});
  kernels::cpu::sum_backward(dx.data(), dy.data(), s, scale, {});
  DeviceBuffer<T> device_x(x, shift), device_dy(dy, shift);
  DeviceBuffer<T> device_y(s.outer * s.inner, shift), device_dx(s.outer * s.n * s.inner, shift);
  const auto actual = sum_on_gpu(device_y, device_x, s, scale);
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

// Equals the sums of the numbers in FP32 except for the order: vectors have other lengths.
TEST_F(ReduceGpu, SumOfBf16InFp32) {
  for (const ReduceShape& s : shapes()) {
    const auto x = random_values<bfloat16>(s.outer * s.n * s.inner, 1);
    std::vector<float> y(static_cast<size_t>(s.outer * s.inner));
    kernels::cpu::sum_forward(y.data(), x.data(), s, 0.37, nullptr, {});
    DeviceBuffer<bfloat16> device_x(x);
    DeviceBuffer<float> device_y(s.outer * s.inner);
    DeviceBuffer<uint8_t> scratch(kernels::cuda::sum_forward_scratch(s, {}));
    const auto actual = run_twice(device_y, [&] {
      scratch.poison();
      kernels::cuda::sum_forward(device_y.get(), device_x.get(), s, 0.37, scratch.get(), {});
    });
    expect_close(actual, y, 2 * 0x1p-24,
                 4 * 0x1p-24 * static_cast<double>(s.n));  // as in check_sum
  }
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

// Small integers: every partial sum is below 2^24, so each order gives the exact sum, and one
// element left out or taken twice shows, however long the row.
template <class T>
void check_exact_sum(const ReduceShape& s, int64_t shift, bool squares) {
  SCOPED_TRACE(::testing::Message()
               << s.outer << " x " << s.n << " x " << s.inner << ", " << squares);
  auto x = random_values<T>(s.outer * s.n * s.inner, static_cast<uint32_t>(s.n), -2.5, 2.5);
  for (T& v : x) v = static_cast<T>(std::nearbyint(static_cast<float>(v)));
  std::vector<double> sums(static_cast<size_t>(s.outer * s.inner));
  for (int64_t i = 0; i < s.outer * s.n * s.inner; ++i) {
    const int64_t at = i / (s.n * s.inner) * s.inner + i % s.inner;
    const double value = static_cast<float>(x[static_cast<size_t>(i)]);
    sums[static_cast<size_t>(at)] += squares ? value * value : value;
  }
  std::vector<T> expected;
  for (const double sum : sums) expected.push_back(static_cast<T>(static_cast<float>(0.5 * sum)));
  DeviceBuffer<T> device_x(x, shift), device_y(s.outer * s.inner, shift);
  expect_close(sum_on_gpu(device_y, device_x, s, 0.5, squares), expected, 0.0, 0.0);
}

TEST_F(ReduceGpu, LongSumsAreExactForIntegers) {
  const std::vector<ReduceShape> shapes = {
      {1, 2047, 1},    {1, 4096, 1},   {1, 4099, 1},  {1, 50257, 1},  {1, 3000001, 1},
      {3, 50257, 1},   {2, 300008, 1}, {48, 8192, 1}, {300, 4100, 1}, {1000, 1025, 1},
      {513, 10000, 1}, {999, 64, 1},   {77, 17, 1},   {1, 50257, 33}, {1, 3001, 768},
      {2, 129, 31},    {7, 4000, 2},   {3, 128, 4096}};
  for (const ReduceShape& s : shapes) {
    for (const int64_t shift : {0, 1}) {
      for (const bool squares : {false, true}) {
        check_exact_sum<float>(s, shift, squares);
        check_exact_sum<bfloat16>(s, shift, squares);
        check_exact_sum<float16>(s, shift, squares);
      }
    }
  }
}

TEST_F(ReduceGpu, EmptySumIsZero) {
  DeviceBuffer<float> x(int64_t{0}), y(6), rows(2);
  EXPECT_EQ(sum_on_gpu(y, x, {2, 0, 3}, 1.0), std::vector<float>(6, 0.0f));
  EXPECT_EQ(sum_on_gpu(rows, x, {2, 0, 1}, 1.0), std::vector<float>(2, 0.0f));
  kernels::cuda::sum_forward(y.get(), x.get(), {0, 4, 3}, 1.0, nullptr, {});  // nothing to write
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
