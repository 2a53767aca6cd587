#include "kernels/pointwise.h"

#include <array>
#include <functional>

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;
using Function = std::function<double(double)>;

// The derivative of `f` at x by central differences, good to 1e-9.
double slope(const Function& f, double x) {
  const double h = 1e-4;
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

template <class T, class F>
void check(F f, const Function& reference, double low, double high) {
  for (const int64_t n : kSizes) {
    const std::vector<T> x = random_vector<T>(n, 1, low, high), dy = random_vector<T>(n, 2);
    Guarded<T> y(n), dx(n);
    cpu::pointwise_forward(y.data(), x.data(), {}, n, f, cpu::Stream{});
    std::vector<double> expected, gradient;
    for (int64_t i = 0; i < n; ++i) {
      const double at = to_double(x[i]);
      expected.push_back(reference(at));
      gradient.push_back(slope(reference, at) * to_double(dy[i]));
    }
    expect_near(y.values(), expected);

    const bool reads_x = F::kSaved == Saved::input, reads_y = F::kSaved == Saved::output;
    cpu::pointwise_backward(dx.data(), reads_x ? x.data() : nullptr, {},
                            reads_y ? y.data() : nullptr, dy.data(), n, f, cpu::Stream{});
    // A saved output is rounded to T before its slope is computed. The differences are accurate
    // only to 1e-9.
    expect_near(dx.values(), gradient, 3 * tolerance<T>() + 1e-9);

    Guarded<T> in_place(x);
    cpu::pointwise_forward(in_place.data(), in_place.data(), {}, n, f, cpu::Stream{});
    EXPECT_TRUE(same_bits(in_place.values(), y.values()));
  }
}

template <class F>
void check_types(F f, const Function& reference, double low = -2.0, double high = 2.0) {
  check<float>(f, reference, low, high);
  check<bfloat16>(f, reference, low, high);
  check<float16>(f, reference, low, high);
  check<double>(f, reference, low, high);
}

TEST(Pointwise, Exp) {
  check_types(Exp{}, [](double x) { return std::exp(x); });
}
TEST(Pointwise, Log) {
  check_types(
      Log{}, [](double x) { return std::log(x); }, 2.0, 9.0);
}
TEST(Pointwise, Tanh) {
  // 1 - y^2 loses digits where tanh is flat: use inputs where it is not.
  check_types(
      Tanh{}, [](double x) { return std::tanh(x); }, -0.5, 0.5);
}
TEST(Pointwise, Sigmoid) {
  check_types(
      Sigmoid{}, [](double x) { return 1 / (1 + std::exp(-x)); }, -1.0, 1.0);
}
TEST(Pointwise, Relu) {
  check_types(
      Relu{}, [](double x) { return x > 0 ? x : 0; }, 0.25, 1.0);
  check_types(
      Relu{}, [](double x) { return x > 0 ? x : 0; }, -1.0, -0.25);
}
TEST(Pointwise, Silu) {
  check_types(Silu{}, [](double x) { return x / (1 + std::exp(-x)); });
}
TEST(Pointwise, GeluTanh) {
  check_types(GeluTanh{}, [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  });
}
TEST(Pointwise, GeluErf) {
  check_types(GeluErf{}, [](double x) { return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0))); });
}
TEST(Pointwise, Pow) {
  check_types(Pow{2.0}, [](double x) { return x * x; });
  check_types(
      Pow{1.7}, [](double x) { return std::pow(x, 1.7); }, 0.5, 2.0);
}
TEST(Pointwise, Sqrt) {
  check_types(
      Sqrt{}, [](double x) { return std::sqrt(x); }, 0.5, 2.0);
}
TEST(Pointwise, Scale) {
  check_types(Scale{3.0, 0.5}, [](double x) { return 3 * x + 0.5; });
}

// The family's own list drives this test, so a new functor is checked automatically.
TEST(Pointwise, EveryBackwardIsTheSlopeOfItsForward) {
  const auto check_at = []<size_t I>(std::integral_constant<size_t, I>) {
    SCOPED_TRACE(I);
    const std::variant_alternative_t<I, PointwiseOp> f;
    check<double>(
        f, [f](double x) { return f.forward(x); }, 0.25, 0.5);
  };
  [&]<size_t... I>(std::index_sequence<I...>) {
    (check_at(std::integral_constant<size_t, I>()), ...);
  }
  (std::make_index_sequence<std::variant_size_v<PointwiseOp>>());
}

TEST(Pointwise, ReluKeepsNaN) {
  const float x[] = {NAN, -1.0f, 2.0f};
  Guarded<float> y(3);
  cpu::pointwise_forward(y.data(), x, {}, 3, Relu{}, cpu::Stream{});
  EXPECT_TRUE(std::isnan(y.values()[0]));
  EXPECT_EQ(y.values()[1], 0.0f);
}

TEST(Pointwise, RowsAtADistance) {
  for (const auto& [rows, cols, pitch] :
       {std::array<int64_t, 3>{5, 7, 7}, {33, 31, 40}, {300, 64, 128}}) {
    const auto wide = random_vector<float>(rows * pitch, 1),
               dy = random_vector<float>(rows * cols, 2);
    std::vector<float> packed;
    for (int64_t i = 0; i < rows * cols; ++i) packed.push_back(wide[i / cols * pitch + i % cols]);
    Guarded<float> y(rows * cols), dx(rows * cols), packed_y(rows * cols), packed_dx(rows * cols);
    cpu::pointwise_forward(y.data(), wide.data(), {cols, pitch}, rows * cols, Silu{},
                           cpu::Stream{});
    cpu::pointwise_forward(packed_y.data(), packed.data(), {}, rows * cols, Silu{}, cpu::Stream{});
    expect_near(y.values(), doubles(packed_y.values()));
    const float* none = nullptr;
    cpu::pointwise_backward(dx.data(), wide.data(), {cols, pitch}, none, dy.data(), rows * cols,
                            Silu{}, cpu::Stream{});
    cpu::pointwise_backward(packed_dx.data(), packed.data(), {}, none, dy.data(), rows * cols,
                            Silu{}, cpu::Stream{});
    expect_near(dx.values(), doubles(packed_dx.values()));
  }
}

TEST(Pointwise, ThreadCount) {
  const auto x = random_vector<float>(100003, 3);
  expect_thread_count_does_not_matter([&] {
    Guarded<float> y(100003);
    cpu::pointwise_forward(y.data(), x.data(), {}, 100003, Tanh{}, cpu::Stream{});
    return y.values();
  });
}

}  // namespace
}  // namespace quern::kernels
