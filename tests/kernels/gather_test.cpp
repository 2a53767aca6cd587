#include "kernels/gather.h"

#include "base/error.h"
#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(Gather, ForwardAndBackward) {
  for_float_types([](auto t) {
    using T = decltype(t);
    for (const GatherShape& s : {GatherShape{3, 5, 9, 7}, GatherShape{1025, 33, 1, 1},
                                 GatherShape{2, 4, 0, 3}, GatherShape{1, 1, 31, 1}}) {
      const int64_t picks = s.outer * s.m * s.inner, size = s.outer * s.n * s.inner;
      const auto x = random_vector<T>(size, 1), dy = random_vector<T>(picks, 2);
      std::vector<int64_t> index;
      for (int64_t e = 0; e < picks; ++e) index.push_back(e * 7 % s.n);
      std::vector<double> expected(picks), gradient(size, 0.0);
      for (int64_t e = 0; e < picks; ++e) {
        const int64_t o = e / (s.m * s.inner), i = e % s.inner;
        const int64_t from = (o * s.n + index[e]) * s.inner + i;
        expected[e] = to_double(x[from]);
        gradient[from] += to_double(dy[e]);
      }
      Guarded<T> y(picks), dx(size);
      cpu::gather_forward(y.data(), x.data(), index.data(), s, cpu::Stream{});
      cpu::gather_backward(dx.data(), dy.data(), index.data(), s, cpu::Stream{});
      expect_near(y.values(), expected, 0.0);
      expect_near(dx.values(), gradient);
    }
  });
}

TEST(Gather, IndexOutOfRangeThrows) {
  const float x[3] = {};
  float y[1];
  const int64_t index[] = {3};
  EXPECT_THROW(cpu::gather_forward(y, x, index, {1, 3, 1, 1}, cpu::Stream{}), Error);
}

}  // namespace
}  // namespace quern::kernels
