#include "kernels/layer_norm.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
constexpr double kEps = 1e-5;

struct Reference {
  std::vector<double> y, dx, dw, db;
};

// Straight from the definition, of the normed tensor: with a branch, of the sum.
Reference reference(const std::vector<double>& x, const std::vector<double>& w,
                    const std::vector<double>& b, const std::vector<double>& dy, int64_t rows,
                    int64_t C) {
  Reference out{x, x, std::vector<double>(C, 0.0), std::vector<double>(C, 0.0)};
  for (int64_t r = 0; r < rows; ++r) {
    const double *in = x.data() + r * C, *grad = dy.data() + r * C;
    double mean = 0.0, variance = 0.0, g = 0.0, gz = 0.0;
    for (int64_t c = 0; c < C; ++c) mean += in[c] / C;
    for (int64_t c = 0; c < C; ++c) variance += std::pow(in[c] - mean, 2) / C;
    const double rstd = 1 / std::sqrt(variance + kEps);
    for (int64_t c = 0; c < C; ++c) {
      const double z = (in[c] - mean) * rstd;
      out.y[r * C + c] = w[c] * z + b[c];
      out.dw[c] += grad[c] * z;
      out.db[c] += grad[c];
      g += w[c] * grad[c] / C;
      gz += w[c] * grad[c] * z / C;
    }
    for (int64_t c = 0; c < C; ++c) {
      const double z = (in[c] - mean) * rstd;
      out.dx[r * C + c] = rstd * (w[c] * grad[c] - g - z * gz);
    }
  }
  return out;
}

std::vector<double> sum_of(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

template <class TX, class TY>
void check(int64_t rows, int64_t C) {
  using A = acc_t<TY>;
  const int64_t n = rows * C;
  const auto x = random_vector<TX>(n, 1), dsum = random_vector<TX>(n, 8);
  const auto branch = random_vector<TY>(n, 7), dy = random_vector<TY>(n, 2);
  const auto w = random_vector<A>(C, 3, 0.5, 1.5), b = random_vector<A>(C, 4);
  const auto dw0 = random_vector<A>(C, 5);
  const auto expected = [&](const std::vector<double>& normed) {
    return reference(normed, doubles(w), doubles(b), doubles(dy), rows, C);
  };
  const Reference want = expected(doubles(x));
  Guarded<TX> sum(n), dx(n), in_place(dsum);
  Guarded<TY> y(n), y_of_sum(n);
  Guarded<A> mean(rows), rstd(rows), mean_of_sum(rows), rstd_of_sum(rows);
  Guarded<A> dw(dw0), db(C), db_again(C);
  const TY* const no_branch = nullptr;
  const TX* const no_gradient = nullptr;
  cpu::add_layer_norm_forward(static_cast<TX*>(nullptr), y.data(), mean.data(), rstd.data(),
                              x.data(), no_branch, w.data(), b.data(), rows, C, kEps,
                              cpu::Stream{});
  expect_near(y.values(), want.y);
  cpu::add_layer_norm_forward(sum.data(), y_of_sum.data(), mean_of_sum.data(), rstd_of_sum.data(),
                              x.data(), branch.data(), w.data(), b.data(), rows, C, kEps,
                              cpu::Stream{});
  expect_near(sum.values(), sum_of(doubles(x), doubles(branch)));
  expect_near(y_of_sum.values(), expected(doubles(sum.values())).y, 2 * tolerance<TY>());

  Guarded<char> scratch(cpu::layer_norm_backward_scratch(rows, C, cpu::Stream{}));
  const auto backward = [&](Guarded<TX>& out, A* weights, A* biases, const TX* residual) {
    cpu::layer_norm_backward(out.data(), weights, biases, dy.data(), residual, x.data(), w.data(),
                             mean.data(), rstd.data(), rows, C, true, false, scratch.data(),
                             cpu::Stream{});
  };
  backward(dx, dw.data(), db.data(), no_gradient);
  backward(in_place, nullptr, db_again.data(), in_place.data());
  // Two means are subtracted: a small factor of cancellation.
  expect_near(dx.values(), want.dx, 4 * tolerance<TX>());
  expect_near(in_place.values(), sum_of(want.dx, doubles(dsum)), 4 * tolerance<TX>());
  expect_near(dw.values(), sum_of(want.dw, doubles(dw0)), 2 * tolerance<A>());
  expect_near(db.values(), want.db, 2 * tolerance<A>());
  EXPECT_TRUE(same_bits(db_again.values(), db.values()));
  scratch.values();
}

TEST(LayerNorm, EveryTypePair) {
  for (const int64_t C : {31, 33, 1025}) {
    for (const int64_t rows : {0, 1, 70}) {
      check<float, float>(rows, C);
      check<bfloat16, bfloat16>(rows, C);
      check<float, bfloat16>(rows, C);
      check<double, double>(rows, C);
    }
  }
}

// E[x^2] - E[x]^2 would lose every digit of the variance here.
TEST(LayerNorm, LargeMean) {
  const float x[] = {10000.0f, 10001.0f}, w[] = {1, 1}, b[] = {0, 0};
  float y[2], mean, rstd;
  cpu::add_layer_norm_forward<float, float>(nullptr, y, &mean, &rstd, x, nullptr, w, b, 1, 2, 0.0,
                                            cpu::Stream{});
  EXPECT_EQ(mean, 10000.5f);
  EXPECT_EQ(y[0], -1.0f);
  EXPECT_EQ(y[1], 1.0f);
}

}  // namespace
}  // namespace quern::kernels
