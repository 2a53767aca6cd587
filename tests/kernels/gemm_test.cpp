#include "kernels/gemm.h"

#include "support/cpu_gemm.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
using testing_support::cpu_gemm;

// Plain loops in double over padded, batched, transposed operands.
template <class TD, class T>
void check(Gemm g) {
  g.lda = (g.transpose_a ? g.m : g.k) + 3;
  g.ldb = (g.transpose_b ? g.k : g.n) + 2;
  g.ldd = g.n + 1;
  g.stride_a = (g.transpose_a ? g.k : g.m) * g.lda;
  g.stride_b = g.batch == 3 ? 0 : (g.transpose_b ? g.n : g.k) * g.ldb;  // one B for all three
  g.stride_d = g.m * g.ldd + 5;
  const auto a = random_vector<T>(g.batch * g.stride_a, 1);
  const auto b = random_vector<T>(g.batch * (g.transpose_b ? g.n : g.k) * g.ldb, 2);
  const auto d0 = random_vector<TD>(g.batch * g.stride_d, 3);
  std::vector<double> expected = doubles(d0);
  for (int64_t x = 0; x < g.batch; ++x) {
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        double sum = 0.0;
        for (int64_t l = 0; l < g.k; ++l) {
          const int64_t ia = x * g.stride_a + (g.transpose_a ? l * g.lda + i : i * g.lda + l);
          const int64_t ib = x * g.stride_b + (g.transpose_b ? j * g.ldb + l : l * g.ldb + j);
          sum += to_double(a[ia]) * to_double(b[ib]);
        }
        double& out = expected[x * g.stride_d + i * g.ldd + j];
        out = g.alpha * sum + (g.beta == 0.0 ? 0.0 : g.beta * out);
      }
    }
  }
  Guarded<TD> d(d0);
  cpu_gemm(d.data(), a.data(), b.data(), g);
  // Memory between the rows and the matrices keeps its value: it counts in the norm's error.
  // A sum of k random products errs by sqrt(k) roundings; k is at most 600 here.
  expect_near(d.values(), expected, 3 * tolerance<acc_t<T>>() + (tolerance<TD>()));
  if (g.k == 0) return;
  Gemm apart = g;  // C lies elsewhere, and D's old elements are not read
  apart.c = d0.data();
  Guarded<TD> other(d0);
  for (int64_t x = 0; x < g.batch; ++x) {
    for (int64_t i = 0; i < g.m; ++i) {
      std::fill_n(other.data() + x * g.stride_d + i * g.ldd, g.n, from_double<TD>(NAN));
    }
  }
  cpu_gemm(other.data(), a.data(), b.data(), apart);
  EXPECT_TRUE(same_bits(other.values(), d.values()));
}

template <class TD, class T>
void check_shapes(bool split) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const double beta : {0.0, 1.0, 0.5}) {
        Gemm g{.split = split};
        g.transpose_a = transpose_a, g.transpose_b = transpose_b;
        g.alpha = 1.5, g.beta = beta;
        for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                                      {31, 33, 31},
                                      {1, 70, 33},
                                      {70, 1, 33},
                                      {65, 7, 600},
                                      {3, 300, 65},
                                      {300, 4, 65},
                                      {5, 3, 0},
                                      {7, 9, 0},
                                      {13, 81, 37},
                                      {0, 4, 4},
                                      {4, 0, 4}}) {
          g.m = m, g.n = n, g.k = k;
          for (const int64_t batch : {1, 2, 3}) {
            g.batch = batch;
            check<TD, T>(g);
          }
        }
      }
    }
  }
  Gemm large{.split = split};  // several tiles both ways
  large.m = 520, large.n = 1025, large.k = 40, large.transpose_b = true;
  check<TD, T>(large);
}

template <class TD, class T>
void check_all() {
  testing_support::at_each_cpu_level([] {
    check_shapes<TD, T>(true);
    if (std::is_same_v<T, float>) check_shapes<TD, T>(false);
  });
}

// k so long that an operand is packed in several parts, and a batch that is packed in several.
TEST(Gemm, OperandsPackedInParts) {
  Gemm g{.m = 37, .n = 70, .k = 140'000, .split = true};
  const auto a = random_vector<float>(g.m * g.k, 1), b = random_vector<float>(g.k * g.n, 2);
  Guarded<float> d(g.m * g.n);
  cpu_gemm(d.data(), a.data(), b.data(), g);
  std::vector<double> expected(g.m * g.n);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t l = 0; l < g.k; ++l) {
      const double left = a[i * g.k + l];
      for (int64_t j = 0; j < g.n; ++j) expected[i * g.n + j] += left * b[l * g.n + j];
    }
  }
  // Slices of 512 random products err by their own 16 roundings, 273 slices by 12 more.
  expect_near(d.values(), expected, 4 * tolerance<float>());

  Gemm many{.m = 300, .n = 200, .k = 700, .batch = 30, .split = true};
  many.stride_a = many.m * many.k, many.stride_d = many.m * many.n;  // one B for all
  const auto left = random_vector<float>(many.batch * many.stride_a, 3);
  Guarded<float> all(many.batch * many.stride_d);
  cpu_gemm(all.data(), left.data(), b.data(), many);
  const std::vector<float> values = all.values();
  Gemm one = many;
  one.batch = 1;
  for (int64_t x = 0; x < many.batch; ++x) {
    Guarded<float> single(many.stride_d);
    cpu_gemm(single.data(), left.data() + x * many.stride_a, b.data(), one);
    const auto at = values.begin() + x * many.stride_d;
    ASSERT_TRUE(same_bits(single.values(), std::vector<float>(at, at + many.stride_d))) << x;
  }
}

TEST(Gemm, Float) {
  check_all<float, float>();
}
TEST(Gemm, Double) {
  check_all<double, double>();
}
TEST(Gemm, Bfloat16) {
  check_all<bfloat16, bfloat16>();
}
TEST(Gemm, Bfloat16ToFloat) {
  check_all<float, bfloat16>();
}

// With beta = 0, D may contain anything.
TEST(Gemm, OverwritesNaN) {
  const float a[] = {2}, b[] = {3};
  float d[] = {NAN};
  Gemm g;
  g.m = g.n = g.k = 1;
  cpu_gemm(d, a, b, g);
  EXPECT_EQ(d[0], 6.0f);
  bfloat16 x = bfloat16(2.0f), y = bfloat16(NAN);
  cpu_gemm(&y, &x, &x, g);
  EXPECT_EQ(to_double(y), 4.0);
}

void thread_count_does_not_matter(bool split) {
  const auto a = random_vector<float>(768 * 129, 1), b = random_vector<float>(257 * 129, 2);
  Gemm g{.split = split};
  g.m = 768, g.n = 257, g.k = 129, g.transpose_b = true;
  expect_thread_count_does_not_matter([&] {
    Guarded<float> d(768 * 257);
    cpu_gemm(d.data(), a.data(), b.data(), g);
    return d.values();
  });
}

TEST(Gemm, ThreadCount) {
  for (const bool split : {false, true}) thread_count_does_not_matter(split);
}

}  // namespace
}  // namespace quern::kernels
