#include "kernels/bias_gelu.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

// GELU's tanh form (Hendrycks and Gimpel, 2016, section 2) and its derivative.
struct Gelu {
  explicit Gelu(double z) {
    const double k = std::sqrt(2.0 / M_PI);
    const double t = std::tanh(k * (z + 0.044715 * z * z * z));
    value = 0.5 * z * (1 + t);
    slope = 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * k * (1 + 3 * 0.044715 * z * z);
  }
  double value, slope;
};

// Each float type; with a bias and without one.
template <class F>
void for_cases(F f) {
  for_float_types([&](auto t) {
    for (const int64_t columns : kSizes) {
      for (const bool biased : {true, false}) f(t, columns, biased);
    }
  });
}

TEST(BiasGelu, ForwardAndBackward) {
  for_cases([](auto t, int64_t F, bool biased) {
    using T = decltype(t);
    using A = acc_t<T>;
    const int64_t rows = 70;
    const auto x = random_vector<T>(rows * F, 1, -3.0, 3.0), b = random_vector<T>(F, 2);
    const auto dy = random_vector<T>(rows * F, 3, 0.0, 2.0);
    const auto db0 = random_vector<A>(F, 4, 100.0, 101.0);
    std::vector<double> y(rows * F), dx(rows * F), db = doubles(db0);
    for (int64_t i = 0; i < rows * F; ++i) {
      const Gelu gelu(to_double(x[i]) + (biased ? to_double(b[i % F]) : 0.0));
      y[i] = gelu.value;
      dx[i] = gelu.slope * to_double(dy[i]);
      db[i % F] += dx[i];
    }
    Guarded<T> out(rows * F), grad(rows * F), again(rows * F);
    Guarded<A> grad_b(db0);
    Guarded<char> scratch(cpu::bias_gelu_backward_scratch(rows, F, cpu::Stream{}));
    const T* const bias = biased ? b.data() : nullptr;
    cpu::bias_gelu_forward(out.data(), x.data(), bias, rows, F, cpu::Stream{});
    cpu::bias_gelu_backward(grad.data(), again.data(), grad_b.data(), dy.data(), x.data(), bias,
                            rows, F, true, scratch.data(), cpu::Stream{});
    // 1 + tanh cancels where x is far below 0, which costs the few bits of 1 / (1 + tanh).
    expect_near(out.values(), y, 4 * tolerance<T>());
    expect_near(grad.values(), dx, 4 * tolerance<T>());
    expect_near(grad_b.values(), db, 4 * tolerance<A>());
    EXPECT_TRUE(same_bits(again.values(), out.values()));
    scratch.values();
  });
}

TEST(BiasGelu, TheResultMayTakeThePlaceOfTheGradient) {
  for_cases([](auto t, int64_t F, bool biased) {
    using T = decltype(t);
    const int64_t rows = 5;
    const auto x = random_vector<T>(rows * F, 1, -3.0, 3.0), b = random_vector<T>(F, 2);
    const auto dy = random_vector<T>(rows * F, 3);
    const T* const bias = biased ? b.data() : nullptr;
    Guarded<T> dx(rows * F), y(rows * F), dy_to_dx(dy), dy_to_y(dy), other_dx(rows * F);
    const auto backward = [&](T* to_dx, T* to_y, const T* from_dy) {
      cpu::bias_gelu_backward<T>(to_dx, to_y, nullptr, from_dy, x.data(), bias, rows, F, false,
                                 nullptr, cpu::Stream{});
    };
    backward(dx.data(), y.data(), dy.data());
    backward(dy_to_dx.data(), nullptr, dy_to_dx.data());
    backward(other_dx.data(), dy_to_y.data(), dy_to_y.data());
    EXPECT_TRUE(same_bits(dy_to_dx.values(), dx.values()));
    EXPECT_TRUE(same_bits(dy_to_y.values(), y.values()));
    EXPECT_TRUE(same_bits(other_dx.values(), dx.values()));
  });
}

}  // namespace
}  // namespace quern::kernels
