// The binary family against the CPU's: one correctly rounded FP32 operation a result (division by a
// square: three), so the bits agree. axpby is a sum of two products, which the GPU rounds twice and
// the CPU three times.
#include "kernels/binary.h"

#include "gpu/compare.h"
#include "gpu/layouts.h"

namespace quern::test {
namespace {

using kernels::BinaryLayout;

class BinaryGpu : public GpuTest {};

template <class F, class T>
void check_case(F f, const LayoutCase& c, int64_t shift) {
  const auto a = random_values<T>(c.a_size, 1, 0.5, 2.0);
  const auto b = random_values<T>(c.b_size, 2, 0.5, 2.0);
  const auto dc = random_values<T>(c.dc_size, 3);
  const auto n = static_cast<size_t>(c.n);
  std::vector<T> out(n), da(n), db(n);
  kernels::cpu::binary_forward(out.data(), a.data(), b.data(), c.layout, f, {});
  kernels::cpu::binary_backward(da.data(), db.data(), a.data(), b.data(), dc.data(), c.layout, f,
                                {});

  DeviceBuffer<T> device_a(a, shift), device_b(b, shift), device_dc(dc, shift);
  DeviceBuffer<T> device_out(c.n, shift), device_da(c.n, shift), device_db(c.n, shift);
  expect_same_bits(run_twice(device_out,
                             [&] {
                               kernels::cuda::binary_forward(device_out.get(), device_a.get(),
                                                             device_b.get(), c.layout, f, {});
                             }),
                   out);
  const T* read_a = F::kReadsA ? device_a.get() : nullptr;
  const T* read_b = F::kReadsB ? device_b.get() : nullptr;
  T* const none = nullptr;
  expect_same_bits(run_twice(device_da,
                             [&] {
                               kernels::cuda::binary_backward(device_da.get(), none, read_a, read_b,
                                                              device_dc.get(), c.layout, f, {});
                             }),
                   da);
  expect_same_bits(run_twice(device_db,
                             [&] {
                               kernels::cuda::binary_backward(device_da.get(), device_db.get(),
                                                              read_a, read_b, device_dc.get(),
                                                              c.layout, f, {});
                             }),
                   db);
  device_da.expect_guards_intact();
}

template <class F>
void check(F f) {
  for (const LayoutCase& c : layout_cases()) {
    SCOPED_TRACE(c.name);
    for (const int64_t shift : {0, 1}) {
      check_case<F, float>(f, c, shift);
      check_case<F, bfloat16>(f, c, shift);
      check_case<F, float16>(f, c, shift);
    }
  }
}

TEST_F(BinaryGpu, Add) {
  check(kernels::Add{});
}
TEST_F(BinaryGpu, Sub) {
  check(kernels::Sub{});
}
TEST_F(BinaryGpu, Mul) {
  check(kernels::Mul{});
}
TEST_F(BinaryGpu, Div) {
  check(kernels::Div{});
}

template <class T, class F>
void check_axpby(F f, const LayoutCase& c, int64_t shift) {
  const auto a = random_values<T>(c.a_size, 1), b = random_values<T>(c.b_size, 2);
  std::vector<T> expected(static_cast<size_t>(c.n));
  kernels::cpu::binary_forward(expected.data(), a.data(), b.data(), c.layout, f, {});
  DeviceBuffer<T> device_a(a, shift), device_b(b, shift), out(c.n, shift);
  const auto actual = run_twice(out, [&] {
    kernels::cuda::binary_forward(out.get(), device_a.get(), device_b.get(), c.layout, f, {});
  });
  // Products up to 5.2, off by a few halves of 4.8e-7; then a 16-bit result may be the neighbour.
  expect_close(actual, expected, sizeof(T) == 2 ? 2 * rounding<T>() : 0x1p-23, 1e-6);
}

TEST_F(BinaryGpu, Axpby) {
  for (const LayoutCase& c : layout_cases()) {
    SCOPED_TRACE(c.name);
    for (const int64_t shift : {0, 1}) {
      check_axpby<float>(kernels::Axpby{0.7, -1.3}, c, shift);
      check_axpby<bfloat16>(kernels::Axpby{0.7, -1.3}, c, shift);
      check_axpby<float16>(kernels::Axpby{0.7, -1.3}, c, shift);
      check_axpby<float>(kernels::AxpbySquare{0.7, -1.3}, c, shift);
      check_axpby<bfloat16>(kernels::AxpbySquare{0.7, -1.3}, c, shift);
      check_axpby<float16>(kernels::AxpbySquare{0.7, -1.3}, c, shift);
    }
  }
}

TEST_F(BinaryGpu, InPlace) {
  for (const int64_t shift : {0, 1}) {
    for (const int64_t n : {33, 1025, 1 << 18}) {
      const LayoutCase c = layout_case("", {n}, {1}, {1});
      const auto a = random_values<float>(n, 1), b = random_values<float>(n, 2);
      std::vector<float> expected(a.size());
      kernels::cpu::binary_forward(expected.data(), a.data(), b.data(), c.layout, kernels::Sub{},
                                   {});
      DeviceBuffer<float> over_a(a, shift), over_b(b, shift), device_a(a, shift);
      kernels::cuda::binary_forward(over_b.get(), device_a.get(), over_b.get(), c.layout,
                                    kernels::Sub{}, {});
      expect_same_bits(over_b.download(), expected);
      DeviceBuffer<float> device_b(b, shift);
      kernels::cuda::binary_forward(over_a.get(), over_a.get(), device_b.get(), c.layout,
                                    kernels::Sub{}, {});
      expect_same_bits(over_a.download(), expected);
    }
  }
}

}  // namespace
}  // namespace quern::test
