// Masked and causal fills: the same bits on both devices.
#include "kernels/mask.h"

#include "gpu/compare.h"
#include "gpu/layouts.h"

namespace quern::test {
namespace {

class MaskGpu : public GpuTest {};

template <class T>
void check_masked_fill(const LayoutCase& c, double value, int64_t shift) {
  const auto x = random_values<T>(c.a_size, 1);
  std::mt19937 engine(2);
  std::vector<uint8_t> mask(static_cast<size_t>(c.b_size));
  for (uint8_t& m : mask) m = engine() % 3 == 0;
  std::vector<T> y(static_cast<size_t>(c.n));
  kernels::cpu::masked_fill(y.data(), x.data(), mask.data(), value, c.layout, {});
  DeviceBuffer<T> device_x(x, shift), device_y(c.n, shift);
  DeviceBuffer<uint8_t> device_mask(mask, shift);
  expect_same_bits(run_twice(device_y,
                             [&] {
                               kernels::cuda::masked_fill(device_y.get(), device_x.get(),
                                                          device_mask.get(), value, c.layout, {});
                             }),
                   y);
}

TEST_F(MaskGpu, MaskedFill) {
  for (const LayoutCase& c : layout_cases()) {
    SCOPED_TRACE(c.name);
    for (const int64_t shift : {0, 1}) {
      check_masked_fill<float>(c, -INFINITY, shift);
      check_masked_fill<bfloat16>(c, 0.0, shift);
      check_masked_fill<float16>(c, -1.5, shift);
    }
  }
}

template <class T>
void check_causal(int64_t batch, int64_t Tq, int64_t Tk, int64_t shift) {
  const int64_t n = batch * Tq * Tk;
  const auto x = random_values<T>(n, 1);
  std::vector<T> y(x.size());
  kernels::cpu::causal_mask(y.data(), x.data(), batch, Tq, Tk, -INFINITY, {});
  DeviceBuffer<T> device_x(x, shift), device_y(n, shift);
  expect_same_bits(run_twice(device_y,
                             [&] {
                               kernels::cuda::causal_mask(device_y.get(), device_x.get(), batch, Tq,
                                                          Tk, -INFINITY, {});
                             }),
                   y);
  kernels::cuda::causal_mask(device_x.get(), device_x.get(), batch, Tq, Tk, -INFINITY, {});
  expect_same_bits(device_x.download(), y);
  device_x.expect_guards_intact();
}

TEST_F(MaskGpu, Causal) {
  const int64_t sizes[][3] = {{0, 4, 4},  {1, 1, 1},    {3, 31, 31},  {2, 33, 33},  {2, 5, 32},
                              {2, 40, 8}, {1, 1, 1025}, {1, 1025, 1}, {2, 513, 640}};
  for (const auto& [batch, Tq, Tk] : sizes) {
    for (const int64_t shift : {0, 1}) {
      check_causal<float>(batch, Tq, Tk, shift);
      check_causal<bfloat16>(batch, Tq, Tk, shift);
      check_causal<float16>(batch, Tq, Tk, shift);
    }
  }
}

}  // namespace
}  // namespace quern::test
