#include "kernels/weighted_sum.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(WeightedSum, ForwardAndBackward) {
  for_float_types([](auto t) {
    using T = decltype(t);
    using A = acc_t<T>;
    for (const int64_t C : kSizes) {
      const int64_t rows = 70;
      const auto x = random_vector<T>(rows * C, 1, 0.0, 2.0), w = random_vector<T>(C, 2, 0.0, 1.0);
      const auto dy = random_vector<T>(rows, 3, 0.0, 2.0);
      const auto dw0 = random_vector<A>(C, 4, 0.0, 1.0);
      std::vector<double> y(rows, 0.0), dx(rows * C), dw = doubles(dw0);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < C; ++c) {
          y[r] += to_double(x[r * C + c]) * to_double(w[c]);
          dx[r * C + c] = to_double(dy[r]) * to_double(w[c]);
          dw[c] += to_double(dy[r]) * to_double(x[r * C + c]);
        }
      }
      Guarded<T> out(rows), grad(rows * C);
      Guarded<A> grad_w(dw0);
      Guarded<char> scratch(cpu::weighted_sum_backward_scratch(rows, C, cpu::Stream{}));
      cpu::weighted_sum_forward(out.data(), x.data(), w.data(), rows, C, cpu::Stream{});
      cpu::weighted_sum_backward(grad.data(), grad_w.data(), dy.data(), x.data(), w.data(), rows, C,
                                 true, scratch.data(), cpu::Stream{});
      // In double the reference, a plain loop of up to 1025 terms, has the larger error.
      expect_near(out.values(), y, 4 * tolerance<T>());
      expect_near(grad.values(), dx);
      expect_near(grad_w.values(), dw, 2 * tolerance<A>());  // 70 terms in two chunks
      scratch.values();
      Guarded<T> only_dx(rows * C);
      cpu::weighted_sum_backward<T>(only_dx.data(), nullptr, dy.data(), x.data(), w.data(), rows, C,
                                    false, nullptr, cpu::Stream{});
      EXPECT_TRUE(same_bits(only_dx.values(), grad.values()));
    }
  });
}

}  // namespace
}  // namespace quern::kernels
