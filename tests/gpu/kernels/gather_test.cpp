// Gather and its transpose: the same bits as the CPU, which adds repeated indices in order.
#include "kernels/gather.h"

#include "gpu/compare.h"

namespace quern::test {
namespace {

using kernels::GatherShape;

class GatherGpu : public GpuTest {};

template <class T>
void check(const GatherShape& s) {
  SCOPED_TRACE(::testing::Message()
               << s.outer << " x " << s.n << " -> " << s.m << " x " << s.inner);
  const int64_t n_x = s.outer * s.n * s.inner, n_y = s.outer * s.m * s.inner;
  const auto x = random_values<T>(n_x, 1);
  const auto dy = random_values<T>(n_y, 2);
  std::mt19937_64 engine(3);
  std::vector<int64_t> index(dy.size());
  for (int64_t& k : index) k = static_cast<int64_t>(engine() % static_cast<uint64_t>(s.n));
  std::vector<T> y(dy.size()), dx(x.size());
  kernels::cpu::gather_forward(y.data(), x.data(), index.data(), s, {});
  kernels::cpu::gather_backward(dx.data(), dy.data(), index.data(), s, {});
  DeviceBuffer<T> device_x(x), device_dy(dy), device_y(n_y), device_dx(n_x);
  DeviceBuffer<int64_t> device_index(index);
  expect_same_bits(run_twice(device_y,
                             [&] {
                               kernels::cuda::gather_forward(device_y.get(), device_x.get(),
                                                             device_index.get(), s, {});
                             }),
                   y);
  expect_same_bits(run_twice(device_dx,
                             [&] {
                               kernels::cuda::gather_backward(device_dx.get(), device_dy.get(),
                                                              device_index.get(), s, {});
                             }),
                   dx);
}

TEST_F(GatherGpu, AnySize) {
  const GatherShape shapes[] = {{1, 1, 1, 1},     {0, 5, 3, 2},      {4, 31, 0, 3},
                                {33, 1025, 1, 1}, {3, 7, 31, 5},     {2, 33, 100, 33},
                                {1, 10, 1025, 1}, {512, 50257, 1, 1}};
  for (const GatherShape& s : shapes) {
    check<float>(s);
    check<bfloat16>(s);
    check<float16>(s);
  }
}

TEST_F(GatherGpu, IndexOutOfRangeGivesNan) {
  DeviceBuffer<float> x(std::vector<float>{1, 2, 3}), y(3);
  DeviceBuffer<int64_t> index(std::vector<int64_t>{2, 3, -1});
  kernels::cuda::gather_forward(y.get(), x.get(), index.get(), {1, 3, 3, 1}, {});
  const auto values = y.download();
  EXPECT_EQ(values[0], 3.0f);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_TRUE(std::isnan(values[2]));
}

}  // namespace
}  // namespace quern::test
