#include "kernels/reduce.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

// Rows, columns, a middle extent, empty sums, and sums long enough to be cut into chunks.
const ReduceShape kShapes[] = {{5, 33, 1}, {1, 31, 7},    {3, 1025, 2},  {2, 0, 3},   {0, 4, 2},
                               {1, 1, 1},  {1, 50000, 1}, {1, 3000, 17}, {2, 7, 1025}};

TEST(Sum, AgainstPlainLoops) {
  for_float_types([](auto t) {
    using T = decltype(t);
    for (const ReduceShape& s : kShapes) {
      const auto x = random_vector<T>(s.outer * s.n * s.inner, 1, 0.0, 1.0);
      const auto dy = random_vector<T>(s.outer * s.inner, 2);
      std::vector<double> sums(dy.size(), 0.0), squares(dy.size(), 0.0), gradient(x.size());
      for (size_t e = 0; e < x.size(); ++e) {
        const size_t out = e / (s.n * s.inner) * s.inner + e % s.inner;
        sums[out] += 0.5 * to_double(x[e]);
        squares[out] += 0.5 * to_double(x[e]) * to_double(x[e]);
        gradient[e] = 0.5 * to_double(dy[out]);
      }
      Guarded<T> y(s.outer * s.inner), dx(s.outer * s.n * s.inner);
      cpu::sum_forward(y.data(), x.data(), s, 0.5, nullptr, cpu::Stream{});
      Guarded<T> y_squares(s.outer * s.inner);
      cpu::sum_squares_forward(y_squares.data(), x.data(), s, 0.5, nullptr, cpu::Stream{});
      cpu::sum_backward(dx.data(), dy.data(), s, 0.5, cpu::Stream{});
      // Positive terms: at most n / 32 + log2(32) roundings in a row, in chunks of up to 16384.
      // They mostly cancel: the bound is the square root of that number.
      const double roundings = std::sqrt(16384.0 / 32 + 5);
      const double bound = tolerance<T>() + roundings * (sizeof(T) == 8 ? 0x1p-53 : 0x1p-24);
      expect_near(y.values(), sums, bound);
      expect_near(y_squares.values(), squares, bound);
      expect_near(dx.values(), gradient);
    }
  });
}

TEST(Sum, OfBf16InFp32) {
  for (const ReduceShape& s : kShapes) {
    const auto x = random_vector<bfloat16>(s.outer * s.n * s.inner, 1, 0.0, 1.0);
    const std::vector<float> wide(x.begin(), x.end());
    Guarded<float> y(s.outer * s.inner), expected(s.outer * s.inner);
    cpu::sum_forward(y.data(), x.data(), s, 0.5, nullptr, cpu::Stream{});
    cpu::sum_forward(expected.data(), wide.data(), s, 0.5, nullptr, cpu::Stream{});
    EXPECT_TRUE(same_bits(y.values(), expected.values()));
  }
}

TEST(Max, FirstOfEqualsAndNaN) {
  const float x[] = {1, 3, 3, 2, NAN, 5, NAN, 9, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
  Guarded<float> y(3), dx(12);
  Guarded<int64_t> index(3);
  const ReduceShape s{3, 4, 1};
  cpu::max_forward(y.data(), index.data(), x, s, cpu::Stream{});
  EXPECT_EQ(y.values()[0], 3.0f);
  EXPECT_TRUE(std::isnan(y.values()[1]));
  EXPECT_EQ(y.values()[2], -INFINITY);
  EXPECT_EQ(index.values(), (std::vector<int64_t>{1, 0, 0}));
  const float dy[] = {7, 8, 9};
  cpu::max_backward(dx.data(), dy, index.data(), s, cpu::Stream{});
  EXPECT_EQ(dx.values(), (std::vector<float>{0, 7, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0}));
}

TEST(Max, MiddleExtent) {
  for_float_types([](auto t) {
    using T = decltype(t);
    const ReduceShape s{3, 33, 5};
    const auto x = random_vector<T>(s.outer * s.n * s.inner, 1);
    Guarded<T> y(s.outer * s.inner);
    Guarded<int64_t> index(s.outer * s.inner);
    cpu::max_forward(y.data(), index.data(), x.data(), s, cpu::Stream{});
    for (int64_t out = 0; out < s.outer * s.inner; ++out) {
      const T* column = x.data() + out / s.inner * s.n * s.inner + out % s.inner;
      int64_t best = 0;
      for (int64_t j = 1; j < s.n; ++j) {
        if (to_double(column[j * s.inner]) > to_double(column[best * s.inner])) best = j;
      }
      EXPECT_EQ(index.values()[out], best);
      EXPECT_EQ(to_double(y.values()[out]), to_double(column[best * s.inner]));
    }
  });
}

TEST(Sum, ThreadCount) {
  const auto x = random_vector<float>(300000, 3);
  expect_thread_count_does_not_matter([&] {
    Guarded<float> y(1);
    cpu::sum_forward(y.data(), x.data(), {1, 300000, 1}, 1.0, nullptr, cpu::Stream{});
    return y.values();
  });
}

}  // namespace
}  // namespace quern::kernels
