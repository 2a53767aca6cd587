#include "kernels/softmax.h"

#include <limits>

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

// Row by row in double: p = softmax(x).
std::vector<double> reference_softmax(const std::vector<double>& x, int64_t rows, int64_t cols) {
  std::vector<double> p(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t c = 0; c < cols; ++c) max = std::max(max, x[r * cols + c]);
    for (int64_t c = 0; c < cols; ++c) sum += std::exp(x[r * cols + c] - max);
    for (int64_t c = 0; c < cols; ++c) p[r * cols + c] = std::exp(x[r * cols + c] - max) / sum;
  }
  return p;
}

TEST(Softmax, InTwoPasses) {
  for_float_types([](auto t) {
    using T = decltype(t);
    for (const int64_t cols : kSizes) {
      const int64_t rows = 3, n = rows * cols;
      const auto x = random_vector<T>(n, 1, -8.0, 8.0);
      Guarded<T> y(n);
      cpu::softmax_online_forward(y.data(), x.data(), rows, cols, cpu::Stream{});
      // As below. The sum does not use lanes, so its rounding error grows with the row.
      expect_near(y.values(), reference_softmax(doubles(x), rows, cols), 8 * tolerance<T>());
    }
  });
  const float least = -std::numeric_limits<float>::infinity();
  const std::vector<float> x{least, least, least, 1.0f};
  Guarded<float> y(4);
  cpu::softmax_online_forward(y.data(), x.data(), 2, 2, cpu::Stream{});
  EXPECT_EQ(y.values(), (std::vector<float>{0.0f, 0.0f, 0.0f, 1.0f}));
}

TEST(Softmax, ForwardAndBackward) {
  for_float_types([](auto t) {
    using T = decltype(t);
    for (const int64_t cols : kSizes) {
      const int64_t rows = 3, n = rows * cols;
      const auto x = random_vector<T>(n, 1, -8.0, 8.0), dy = random_vector<T>(n, 2);
      Guarded<T> y(n), dx(n), log_y(n), log_dx(n);
      cpu::softmax_forward(y.data(), x.data(), rows, cols, false, cpu::Stream{});
      cpu::softmax_forward(log_y.data(), x.data(), rows, cols, true, cpu::Stream{});
      const auto p = reference_softmax(doubles(x), rows, cols);
      std::vector<double> log_p;
      for (const double value : p) log_p.push_back(std::log(value));
      // exp of a difference d of order 10 turns its rounding into d times as much.
      expect_near(y.values(), p, 4 * tolerance<T>());
      expect_near(log_y.values(), log_p, 4 * tolerance<T>());

      const std::vector<T> saved = y.values(), log_saved = log_y.values();
      cpu::softmax_backward(dx.data(), saved.data(), dy.data(), rows, cols, false, cpu::Stream{});
      cpu::softmax_backward(log_dx.data(), log_saved.data(), dy.data(), rows, cols, true,
                            cpu::Stream{});
      std::vector<double> expected(n), log_expected(n);
      for (int64_t r = 0; r < rows; ++r) {
        double dot = 0.0, sum = 0.0;
        for (int64_t c = r * cols; c < (r + 1) * cols; ++c) {
          dot += to_double(saved[c]) * to_double(dy[c]);
          sum += to_double(dy[c]);
        }
        for (int64_t c = r * cols; c < (r + 1) * cols; ++c) {
          expected[c] = to_double(saved[c]) * (to_double(dy[c]) - dot);
          log_expected[c] = to_double(dy[c]) - std::exp(to_double(log_saved[c])) * sum;
        }
      }
      // A single column's exact gradient is 0: dy - dot cancels, so measure against dy there.
      if (cols > 1) {
        expect_near(dx.values(), expected, 4 * tolerance<T>());
        expect_near(log_dx.values(), log_expected, 4 * tolerance<T>());
      }
    }
  });
}

TEST(Softmax, RowOfMinusInfinityAndNaN) {
  const std::vector<float> x = {-INFINITY, -INFINITY, -INFINITY, 1.0f, -INFINITY,
                                1.0f,      NAN,       0.0f,      0.0f};
  Guarded<float> y(9), log_y(9);
  cpu::softmax_forward(y.data(), x.data(), 3, 3, false, cpu::Stream{});
  cpu::softmax_forward(log_y.data(), x.data(), 3, 3, true, cpu::Stream{});
  const auto p = y.values();
  EXPECT_EQ(std::vector<float>(p.begin(), p.begin() + 6),
            (std::vector<float>{0, 0, 0, 0.5f, 0, 0.5f}));
  for (int c = 6; c < 9; ++c) EXPECT_TRUE(std::isnan(p[c]));
  for (int c = 0; c < 3; ++c) EXPECT_EQ(log_y.values()[c], -INFINITY);
}

TEST(Softmax, OnlineOfMinusInfinityAndNaN) {
  const std::vector<float> x = {-INFINITY, -INFINITY, -INFINITY, 1.0f, -INFINITY, 1.0f,
                                -INFINITY, NAN,       0.0f,      NAN,  1.0f,      2.0f};
  Guarded<float> y(12);
  cpu::softmax_online_forward(y.data(), x.data(), 4, 3, cpu::Stream{});
  const auto p = y.values();
  EXPECT_EQ(std::vector<float>(p.begin(), p.begin() + 6),
            (std::vector<float>{0, 0, 0, 0.5f, 0, 0.5f}));
  for (int c = 6; c < 12; ++c) EXPECT_TRUE(std::isnan(p[c])) << c;
}

TEST(Softmax, LargeLogitsDoNotOverflow) {
  const float x[] = {1e30f, 1e30f, -1e30f};
  Guarded<float> y(3);
  cpu::softmax_forward(y.data(), x, 1, 3, false, cpu::Stream{});
  EXPECT_EQ(y.values(), (std::vector<float>{0.5f, 0.5f, 0.0f}));
}

TEST(Softmax, ThreadCount) {
  const auto x = random_vector<float>(700 * 129, 3);
  expect_thread_count_does_not_matter([&] {
    Guarded<float> y(700 * 129);
    cpu::softmax_forward(y.data(), x.data(), 700, 129, false, cpu::Stream{});
    return y.values();
  });
}

}  // namespace
}  // namespace quern::kernels
