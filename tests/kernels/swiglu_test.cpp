#include "kernels/swiglu.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(SwiGLU, ForwardAndBackward) {
  for_float_types([](auto t) {
    using T = decltype(t);
    for (const int64_t F : kSizes) {
      const int64_t rows = 5;
      const auto gate_up = random_vector<T>(rows * 2 * F, 1, -4.0, 4.0);
      const auto dy = random_vector<T>(rows * F, 2);
      std::vector<double> y(rows * F), gradient(rows * 2 * F);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < F; ++i) {
          const double g = to_double(gate_up[r * 2 * F + i]),
                       u = to_double(gate_up[(2 * r + 1) * F + i]);
          const double s = 1 / (1 + std::exp(-g)), d = to_double(dy[r * F + i]);
          y[r * F + i] = g * s * u;
          gradient[r * 2 * F + i] = d * u * (s + g * s * (1 - s));
          gradient[(2 * r + 1) * F + i] = d * g * s;
        }
      }
      Guarded<T> out(rows * F), grad(rows * 2 * F), in_place(gate_up);
      cpu::swiglu_forward(out.data(), gate_up.data(), rows, F, cpu::Stream{});
      cpu::swiglu_backward<T>(grad.data(), nullptr, gate_up.data(), dy.data(), rows, F,
                              cpu::Stream{});
      cpu::swiglu_backward<T>(in_place.data(), nullptr, in_place.data(), dy.data(), rows, F,
                              cpu::Stream{});
      Guarded<T> with_output(rows * 2 * F), dy_to_y(dy);
      cpu::swiglu_backward(with_output.data(), dy_to_y.data(), gate_up.data(), dy_to_y.data(), rows,
                           F, cpu::Stream{});
      EXPECT_TRUE(same_bits(with_output.values(), grad.values()));
      EXPECT_TRUE(same_bits(dy_to_y.values(), out.values()));
      expect_near(out.values(), y);
      expect_near(grad.values(), gradient);
      EXPECT_TRUE(same_bits(in_place.values(), grad.values()));
    }
  });
}

}  // namespace
}  // namespace quern::kernels
