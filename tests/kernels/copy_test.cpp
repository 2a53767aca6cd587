#include "kernels/copy.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

StridedCopy layout_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& dst,
                      const std::vector<int64_t>& src) {
  StridedCopy layout;
  layout.ndim = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), layout.shape);
  std::copy(dst.begin(), dst.end(), layout.dst_strides);
  std::copy(src.begin(), src.end(), layout.src_strides);
  return layout;
}

template <class D, class S>
std::vector<D> converted(const std::vector<S>& src) {
  Guarded<D> dst(static_cast<int64_t>(src.size()));
  const int64_t n = static_cast<int64_t>(src.size());
  cpu::copy(dst.data(), dtype_of<D>, src.data(), dtype_of<S>, layout_of({n}, {1}, {1}),
            cpu::Stream{});
  return dst.values();
}

TEST(Copy, ContiguousOfEverySize) {
  for (const int64_t n : kSizes) {
    const auto x = random_vector<float>(n, 1);
    EXPECT_TRUE(same_bits(converted<float>(x), x));
    std::vector<double> wide = doubles(x);
    EXPECT_TRUE(same_bits(converted<double>(x), wide));
  }
}

// (B, T, H, D) to (B, H, T, D) and a full transpose, through memory order.
TEST(Copy, Transposes) {
  const int64_t B = 2, T = 5, H = 3, D = 7;
  const auto x = random_vector<float>(B * T * H * D, 1);
  Guarded<float> y(B * T * H * D), z(T * H);
  cpu::copy(y.data(), DType::f32, x.data(), DType::f32,
            layout_of({B, H, T, D}, {H * T * D, T * D, D, 1}, {T * H * D, D, H * D, 1}),
            cpu::Stream{});
  cpu::copy(z.data(), DType::f32, x.data(), DType::f32, layout_of({H, T}, {T, 1}, {1, H}),
            cpu::Stream{});
  const auto heads = y.values(), transposed = z.values();
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t h = 0; h < H; ++h) {
        for (int64_t d = 0; d < D; ++d) {
          EXPECT_EQ(heads[((b * H + h) * T + t) * D + d], x[((b * T + t) * H + h) * D + d]);
        }
      }
    }
  }
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t h = 0; h < H; ++h) EXPECT_EQ(transposed[h * T + t], x[t * H + h]);
  }
}

TEST(Copy, RepeatsWithStrideZeroAndWritesStrided) {
  const std::vector<int32_t> x = {4, 5};
  Guarded<int32_t> y(std::vector<int32_t>(12, -1));
  cpu::copy(y.data(), DType::i32, x.data(), DType::i32, layout_of({3, 2}, {4, 2}, {0, 1}),
            cpu::Stream{});
  EXPECT_EQ(y.values(), (std::vector<int32_t>{4, -1, 5, -1, 4, -1, 5, -1, 4, -1, 5, -1}));
}

TEST(Copy, IntegersAndBools) {
  EXPECT_EQ(converted<int32_t>(std::vector<float>{1.9f, -1.9f, 0.0f}),
            (std::vector<int32_t>{1, -1, 0}));
  EXPECT_EQ(converted<int64_t>(std::vector<uint16_t>{65535}), (std::vector<int64_t>{65535}));
  EXPECT_EQ(converted<uint8_t>(std::vector<int32_t>{255, 0}), (std::vector<uint8_t>{255, 0}));
  const bool source[] = {true, false};
  float numbers[2];
  cpu::copy(numbers, DType::f32, source, DType::boolean, layout_of({2}, {1}, {1}), cpu::Stream{});
  EXPECT_EQ(numbers[0], 1.0f);
  EXPECT_EQ(numbers[1], 0.0f);
  const float values[] = {0.25f, -0.0f};
  bool flags[2];
  cpu::copy(flags, DType::boolean, values, DType::f32, layout_of({2}, {1}, {1}), cpu::Stream{});
  EXPECT_TRUE(flags[0]);
  EXPECT_FALSE(flags[1]);
}

// Ties go to the even neighbour, a hair more goes up, NaN stays NaN, and the largest finite float
// rounds to infinity.
TEST(Copy, Bfloat16RoundsToNearestEven) {
  const std::vector<float> x = {1.0f,           1.0f + 0x1p-8f,  1.0f + 0x1p-8f + 0x1p-20f,
                                1.0f + 0x3p-8f, -1.0f - 0x1p-8f, NAN,
                                3.40282347e38f, INFINITY};
  const auto y = converted<bfloat16>(x);
  const uint16_t expected[] = {0x3f80, 0x3f80, 0x3f81, 0x3f82, 0xbf80, 0x7fc0, 0x7f80, 0x7f80};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i].bits, expected[i]) << i;
}

// 1 + 2^-8 + 2^-40 lies above the tie but rounds to the tie as a float: rounding twice would go
// down.
TEST(Copy, DoubleToBfloat16RoundsOnce) {
  const std::vector<double> x = {1.0 + 0x1p-8 + 0x1p-40, -1.0 - 0x1p-8 - 0x1p-40, 1.0 + 0x1p-8,
                                 1.0 + 0x3p-8 - 0x1p-40};
  const auto y = converted<bfloat16>(x);
  const uint16_t expected[] = {0x3f81, 0xbf81, 0x3f80, 0x3f81};
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i].bits, expected[i]) << i;
}

// Every bfloat16 and float16 that is not NaN survives the way through float.
TEST(Copy, HalvesRoundTrip) {
  std::vector<bfloat16> b;
  std::vector<float16> h;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto as_b = bfloat16::from_bits(static_cast<uint16_t>(bits));
    const auto as_h = float16::from_bits(static_cast<uint16_t>(bits));
    if (!std::isnan(to_double(as_b))) b.push_back(as_b);
    if (!std::isnan(to_double(as_h))) h.push_back(as_h);
  }
  EXPECT_TRUE(same_bits(converted<bfloat16>(converted<float>(b)), b));
  EXPECT_TRUE(same_bits(converted<float16>(converted<float>(h)), h));
}

TEST(Fill, EveryDtype) {
  Guarded<float> f(33);
  Guarded<bfloat16> b(33);
  Guarded<int64_t> i(33);
  cpu::fill(f.data(), DType::f32, 33, 1.5, cpu::Stream{});
  cpu::fill(b.data(), DType::bf16, 33, 1.0 + 0x1p-8 + 0x1p-40, cpu::Stream{});
  cpu::fill(i.data(), DType::i64, 33, -7.0, cpu::Stream{});
  cpu::fill(f.data(), DType::f32, 0, 9.0, cpu::Stream{});
  EXPECT_EQ(f.values(), std::vector<float>(33, 1.5f));
  for (const bfloat16 value : b.values()) EXPECT_EQ(value.bits, 0x3f81);
  EXPECT_EQ(i.values(), std::vector<int64_t>(33, -7));
}

template <class D, class S>
void check_accumulate() {
  for (const int64_t n : kSizes) {
    const auto src = random_vector<S>(n, 1);
    const auto before = random_vector<D>(n, 2);
    Guarded<D> sum(before), plain(n);
    cpu::accumulate(sum.data(), src.data(), n, true, cpu::Stream{});
    cpu::accumulate(plain.data(), src.data(), n, false, cpu::Stream{});
    std::vector<double> expected = doubles(src);
    expect_near(plain.values(), expected);
    for (int64_t i = 0; i < n; ++i) expected[i] += to_double(before[i]);
    expect_near(sum.values(), expected);
  }
}

TEST(Accumulate, EveryPair) {
  check_accumulate<float, float>();
  check_accumulate<float, bfloat16>();
  check_accumulate<bfloat16, bfloat16>();
  check_accumulate<float16, float16>();
  check_accumulate<double, double>();
}

}  // namespace
}  // namespace quern::kernels
