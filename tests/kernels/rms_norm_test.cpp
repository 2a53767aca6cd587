#include "kernels/rms_norm.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
constexpr double kEps = 1e-5;

struct Reference {
  std::vector<double> y, dx, dw;
};

// Straight from the definition: y = w x r, r = (mean(x^2) + eps)^(-1/2), and its derivative.
Reference reference(const std::vector<double>& x, const std::vector<double>& w,
                    const std::vector<double>& dy, int64_t rows, int64_t C) {
  Reference out{std::vector<double>(x.size()), std::vector<double>(x.size()),
                std::vector<double>(w.size(), 0.0)};
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0.0, dot = 0.0;
    for (int64_t c = r * C; c < (r + 1) * C; ++c) squares += x[c] * x[c];
    const double rstd = 1 / std::sqrt(squares / C + kEps);
    for (int64_t c = 0; c < C; ++c) dot += w[c] * dy[r * C + c] * x[r * C + c];
    for (int64_t c = 0; c < C; ++c) {
      const int64_t e = r * C + c;
      out.y[e] = w[c] * x[e] * rstd;
      out.dx[e] = rstd * w[c] * dy[e] - x[e] * rstd * rstd * rstd * dot / C;
      out.dw[c] += dy[e] * x[e] * rstd;
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
  const auto x = random_vector<TX>(n, 1), dsum = random_vector<TX>(n, 5);
  const auto branch = random_vector<TY>(n, 4), dy = random_vector<TY>(n, 2);
  const auto w = random_vector<A>(C, 3, 0.5, 1.5), dw0 = random_vector<A>(C, 6);
  const Reference want = reference(doubles(x), doubles(w), doubles(dy), rows, C);

  Guarded<TY> y(n), y_of_sum(n);
  Guarded<A> rstd(rows), rstd_of_sum(rows), dw(C), dw_added(dw0);
  Guarded<TX> sum(n), dx(n), in_place(dsum);
  cpu::add_rms_norm_forward<TX, TY>(nullptr, y.data(), rstd.data(), x.data(), nullptr, w.data(),
                                    rows, C, kEps, cpu::Stream{});
  expect_near(y.values(), want.y);

  cpu::add_rms_norm_forward(sum.data(), y_of_sum.data(), rstd_of_sum.data(), x.data(),
                            branch.data(), w.data(), rows, C, kEps, cpu::Stream{});
  expect_near(sum.values(), sum_of(doubles(x), doubles(branch)));
  const auto rounded_sum = doubles(sum.values());
  expect_near(y_of_sum.values(), reference(rounded_sum, doubles(w), doubles(dy), rows, C).y);

  Guarded<char> scratch(cpu::rms_norm_backward_scratch(rows, C, cpu::Stream{}));
  const auto backward = [&](Guarded<TX>& out, A* weights, const TX* residual, bool add) {
    cpu::rms_norm_backward(out.data(), weights, dy.data(), residual, x.data(), w.data(),
                           rstd.data(), rows, C, add, scratch.data(), cpu::Stream{});
  };
  backward(dx, dw.data(), nullptr, false);
  backward(in_place, dw_added.data(), in_place.data(), true);
  // dx cancels (it is orthogonal to x up to eps). So the error is relative to w dy rstd, which is
  // larger by a small factor, and for C = 1 by any factor.
  if (C > 1) expect_near(dx.values(), want.dx, 4 * tolerance<TX>());
  expect_near(in_place.values(), sum_of(want.dx, doubles(dsum)), 4 * tolerance<TX>());
  expect_near(dw.values(), want.dw, 2 * tolerance<A>());
  expect_near(dw_added.values(), sum_of(want.dw, doubles(dw0)), 2 * tolerance<A>());
  Guarded<TX> without_weights(n);
  backward(without_weights, nullptr, nullptr, false);
  EXPECT_TRUE(same_bits(without_weights.values(), dx.values()));
  scratch.values();
}

TEST(RmsNorm, EveryTypePair) {
  for (const int64_t C : {1, 31, 33, 1025}) {
    for (const int64_t rows : {0, 1, 70}) {
      check<float, float>(rows, C);
      check<bfloat16, bfloat16>(rows, C);
      check<float, bfloat16>(rows, C);
      check<double, double>(rows, C);
    }
  }
}

TEST(RmsNorm, WeightGradientThreadCount) {
  const int64_t rows = 500, C = 130;
  const auto x = random_vector<float>(rows * C, 1), dy = random_vector<float>(rows * C, 2);
  const std::vector<float> w(C, 1.0f), rstd(rows, 0.9f);
  std::vector<char> scratch(cpu::rms_norm_backward_scratch(rows, C, cpu::Stream{}));
  expect_thread_count_does_not_matter([&] {
    Guarded<float> dx(rows * C), dw(C);
    cpu::rms_norm_backward<float, float>(dx.data(), dw.data(), dy.data(), nullptr, x.data(),
                                         w.data(), rstd.data(), rows, C, false, scratch.data(),
                                         cpu::Stream{});
    return dw.values();
  });
}

}  // namespace
}  // namespace quern::kernels
