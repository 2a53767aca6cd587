#include "kernels/layer_norm.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
constexpr double kEps = 1e-5;

template <class T>
void check(int64_t rows, int64_t C) {
  using A = acc_t<T>;
  const int64_t n = rows * C;
  const auto x = random_vector<T>(n, 1), dy = random_vector<T>(n, 2);
  const auto w = random_vector<A>(C, 3, 0.5, 1.5), b = random_vector<A>(C, 4);
  const auto dw0 = random_vector<A>(C, 5), db0 = random_vector<A>(C, 6);
  std::vector<double> y(n), dx(n), dw(C, 0.0), db(C, 0.0);
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0.0, variance = 0.0, g = 0.0, gz = 0.0;
    const auto at = [&](const std::vector<T>& v, int64_t c) { return to_double(v[r * C + c]); };
    for (int64_t c = 0; c < C; ++c) mean += at(x, c) / C;
    for (int64_t c = 0; c < C; ++c) variance += std::pow(at(x, c) - mean, 2) / C;
    const double rstd = 1 / std::sqrt(variance + kEps);
    for (int64_t c = 0; c < C; ++c) {
      const double z = (at(x, c) - mean) * rstd;
      y[r * C + c] = to_double(w[c]) * z + to_double(b[c]);
      dw[c] += at(dy, c) * z;
      db[c] += at(dy, c);
      g += to_double(w[c]) * at(dy, c) / C;
      gz += to_double(w[c]) * at(dy, c) * z / C;
    }
    for (int64_t c = 0; c < C; ++c) {
      const double z = (at(x, c) - mean) * rstd;
      dx[r * C + c] = rstd * (to_double(w[c]) * at(dy, c) - g - z * gz);
    }
  }
  Guarded<T> out(n), grad(n);
  Guarded<A> mean(rows), rstd(rows), grad_w(dw0), grad_b(C);
  Guarded<char> scratch(cpu::layer_norm_backward_scratch(rows, C, cpu::Stream{}));
  cpu::layer_norm_forward(out.data(), mean.data(), rstd.data(), x.data(), w.data(), b.data(), rows,
                          C, kEps, cpu::Stream{});
  cpu::layer_norm_backward(grad.data(), grad_w.data(), grad_b.data(), dy.data(), x.data(), w.data(),
                           mean.data(), rstd.data(), rows, C, true, false, scratch.data(),
                           cpu::Stream{});
  for (int64_t c = 0; c < C; ++c) dw[c] += to_double(dw0[c]);
  expect_near(out.values(), y);
  // Two means are subtracted: a small factor of cancellation.
  expect_near(grad.values(), dx, 4 * tolerance<T>());
  expect_near(grad_w.values(), dw, 2 * tolerance<A>());
  expect_near(grad_b.values(), db, 2 * tolerance<A>());
  scratch.values();
}

TEST(LayerNorm, ForwardAndBackward) {
  for_float_types([](auto t) {
    for (const int64_t C : {31, 33, 1025}) {
      for (const int64_t rows : {0, 1, 70}) check<decltype(t)>(rows, C);
    }
  });
}

// E[x^2] - E[x]^2 would lose every digit of the variance here.
TEST(LayerNorm, LargeMean) {
  const float x[] = {10000.0f, 10001.0f}, w[] = {1, 1}, b[] = {0, 0};
  float y[2], mean, rstd;
  cpu::layer_norm_forward(y, &mean, &rstd, x, w, b, 1, 2, 0.0, cpu::Stream{});
  EXPECT_EQ(mean, 10000.5f);
  EXPECT_EQ(y[0], -1.0f);
  EXPECT_EQ(y[1], 1.0f);
}

}  // namespace
}  // namespace quern::kernels
