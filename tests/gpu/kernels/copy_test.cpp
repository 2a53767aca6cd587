// Copies, fills and accumulation: the same bits on both devices.
#include "kernels/copy.h"

#include "gpu/compare.h"

namespace quern::test {
namespace {

using kernels::StridedCopy;

class CopyGpu : public GpuTest {};

// A dtype and the type its elements are stored in; they differ for bool only.
template <class T>
struct Typed {
  DType dtype = dtype_of<T>;
};
constexpr Typed<uint8_t> kBool{DType::boolean};

template <class T>
std::vector<T> values_of(Typed<T> type, int64_t n) {
  std::mt19937 engine(1);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& v : values) {
    const float x = static_cast<float>(engine() % 2000) / 16.0f;  // within every dtype's range
    v = type.dtype == DType::boolean ? static_cast<T>(x < 60.0f) : static_cast<T>(x);
  }
  return values;
}

// Copies `layout` from src to n_dst elements and holds every byte of dst against the CPU's.
template <class D, class S>
void check_values(Typed<D> d, Typed<S> s, const std::vector<S>& src, const StridedCopy& layout,
                  int64_t n_dst, int64_t shift) {
  std::vector<D> expected(static_cast<size_t>(n_dst));
  std::memset(static_cast<void*>(expected.data()), DeviceBuffer<D>::kPoison,
              expected.size() * sizeof(D));
  kernels::cpu::copy(expected.data(), d.dtype, src.data(), s.dtype, layout, {});
  DeviceBuffer<S> device_src(src, shift);
  DeviceBuffer<D> dst(n_dst, shift);
  const std::vector<D> actual = run_twice(
      dst, [&] { kernels::cuda::copy(dst.get(), d.dtype, device_src.get(), s.dtype, layout, {}); });
  SCOPED_TRACE(::testing::Message() << s.dtype << " to " << d.dtype);
  expect_same_bits(actual, expected);
}

StridedCopy layout_of(std::initializer_list<int64_t> shape, std::initializer_list<int64_t> dst,
                      std::initializer_list<int64_t> src) {
  StridedCopy layout;
  layout.ndim = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), layout.shape);
  std::copy(dst.begin(), dst.end(), layout.dst_strides);
  std::copy(src.begin(), src.end(), layout.src_strides);
  return layout;
}

template <class D, class S>
void check_pair(Typed<D> d, Typed<S> s) {
  const auto check = [&](const StridedCopy& layout, int64_t n_dst, int64_t n_src) {
    for (const int64_t shift : {0, 1}) {
      check_values(d, s, values_of(s, n_src), layout, n_dst, shift);
    }
  };
  for (const int64_t n : {0, 1, 31, 33, 1025, 1 << 18}) check(layout_of({n}, {1}, {1}), n, n);
  check(layout_of({5, 7, 9}, {63, 9, 1}, {1, 45, 5}), 315, 315);     // transpose
  check(layout_of({4, 6, 16}, {96, 16, 1}, {16, 64, 1}), 384, 384);  // heads
  check(layout_of({3, 8, 16}, {128, 16, 1}, {0, 16, 1}), 384, 128);  // expand
  check(layout_of({6, 8}, {16, 1}, {24, 1}), 96, 160);               // slices
  check(layout_of({300, 500}, {500, 1}, {1, 300}), 150000, 150000);
  check(layout_of({}, {}, {}), 1, 1);  // scalar
}

template <class S>
void check_source(Typed<S> s = {}) {
  check_pair(Typed<float>{}, s);
  check_pair(Typed<bfloat16>{}, s);
  check_pair(Typed<float16>{}, s);
  check_pair(Typed<double>{}, s);
  check_pair(Typed<int32_t>{}, s);
  check_pair(Typed<int64_t>{}, s);
  check_pair(Typed<uint16_t>{}, s);
  check_pair(Typed<uint8_t>{}, s);
  check_pair(kBool, s);
}

TEST_F(CopyGpu, FromF32) {
  check_source<float>();
}
TEST_F(CopyGpu, FromBf16) {
  check_source<bfloat16>();
}
TEST_F(CopyGpu, FromF16) {
  check_source<float16>();
}
TEST_F(CopyGpu, FromF64) {
  check_source<double>();
}
TEST_F(CopyGpu, FromI32) {
  check_source<int32_t>();
}
TEST_F(CopyGpu, FromI64) {
  check_source<int64_t>();
}
TEST_F(CopyGpu, FromU16) {
  check_source<uint16_t>();
}
TEST_F(CopyGpu, FromU8) {
  check_source<uint8_t>();
}
TEST_F(CopyGpu, FromBool) {
  check_source(kBool);
}

// Wide numbers close to a tie between two 16-bit floats are rounded once, not through a float. Also
// signs, fractions and numbers beyond the destination's range.
TEST_F(CopyGpu, RoundsOnce) {
  const std::vector<double> reals = {1 + 0x1p-8,
                                     1 + 0x1p-8 + 0x1p-40,
                                     1 + 3 * 0x1p-8 - 0x1p-40,
                                     -0x1p-30,
                                     -1 - 0x1p-11,
                                     1 + 0x1p-11 + 0x1p-50,
                                     1e300,
                                     -INFINITY,
                                     NAN,
                                     0x1p-140,
                                     3 * 0x1p-26,
                                     -65519.9999999,
                                     65520.0,
                                     -0.0,
                                     1.0 / 3.0};
  const std::vector<int64_t> integers = {0,
                                         -1,
                                         257,
                                         -(int64_t{1} << 40) - (int64_t{1} << 32) - 1,
                                         65519,
                                         2049,
                                         (int64_t{1} << 62) + 12345,
                                         INT64_MIN};
  const auto n_reals = static_cast<int64_t>(reals.size());
  const auto n_integers = static_cast<int64_t>(integers.size());
  const auto line = [](int64_t n) { return layout_of({n}, {1}, {1}); };
  const auto numbers = [&](auto d) {
    const std::vector<double> finite = {-1.9, 2.5, 7.999999, -3e4, 0.0};
    check_values(d, Typed<double>{}, finite, line(5), 5, 0);
    check_values(d, Typed<float>{}, std::vector<float>(finite.begin(), finite.end()), line(5), 5,
                 0);
  };
  numbers(Typed<int32_t>{});
  numbers(Typed<int64_t>{});
  const auto floats = [&](auto d) {
    check_values(d, Typed<int64_t>{}, integers, line(n_integers), n_integers, 0);
    // Without NaN, whose sign and payload depend on the converter.
    std::vector<double> ordered = reals;
    ordered[8] = 8.0;
    check_values(d, Typed<double>{}, ordered, line(n_reals), n_reals, 0);
  };
  floats(Typed<float>{});
  floats(Typed<bfloat16>{});
  floats(Typed<float16>{});
}

template <class T>
void check_fill(double value) {
  for (const int64_t n : {0, 1, 31, 33, 1025, 1 << 20}) {
    for (const int64_t shift : {0, 1, 3}) {
      std::vector<T> expected(static_cast<size_t>(n));
      kernels::cpu::fill(expected.data(), dtype_of<T>, n, value, {});
      DeviceBuffer<T> x(n, shift);
      const auto actual =
          run_twice(x, [&] { kernels::cuda::fill(x.get(), dtype_of<T>, n, value, {}); });
      expect_same_bits(actual, expected);
    }
  }
}

TEST_F(CopyGpu, Fill) {
  check_fill<float>(-1.1);
  check_fill<bfloat16>(3.3);
  check_fill<float16>(-0.7);
  check_fill<bfloat16>(1 + 0x1p-8 + 0x1p-40);  // rounded once
  check_fill<float16>(1 + 0x1p-11 + 0x1p-40);
  check_fill<double>(1e-300);
  check_fill<int32_t>(-7);
  check_fill<int64_t>(-123456789012.0);
  check_fill<uint16_t>(54321);
  check_fill<uint8_t>(77);
}

template <class D, class S>
void check_accumulate() {
  for (const int64_t n : {0, 1, 31, 33, 1025, (1 << 20) + 5}) {
    for (const bool add : {false, true}) {
      for (const int64_t shift : {0, 1}) {
        const auto src = random_values<S>(n, 3);
        const auto before = random_values<D>(n, 4);
        std::vector<D> expected = before;
        kernels::cpu::accumulate(expected.data(), src.data(), n, add, {});
        DeviceBuffer<S> device_src(src, shift);
        DeviceBuffer<D> dst(n, shift);
        const auto actual = run_twice(dst, [&] {
          if (add) dst.upload(before);
          kernels::cuda::accumulate(dst.get(), device_src.get(), n, add, {});
        });
        expect_same_bits(actual, expected);  // one FP32 sum, one rounding: no room for a difference
      }
    }
  }
}

TEST_F(CopyGpu, Accumulate) {
  check_accumulate<float, float>();
  check_accumulate<float, bfloat16>();
  check_accumulate<bfloat16, bfloat16>();
  check_accumulate<float16, float16>();
}

}  // namespace
}  // namespace quern::test
