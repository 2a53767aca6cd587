#include "kernels/mask.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

TEST(MaskedFill, BroadcastsTheMask) {
  for_float_types([](auto t) {
    using T = decltype(t);
    const int64_t rows = 5, cols = 33;
    const auto x = random_vector<T>(rows * cols, 1);
    std::vector<uint8_t> whole(rows * cols), column(rows);
    for (size_t i = 0; i < whole.size(); ++i) whole[i] = i % 3 == 0;
    for (size_t i = 0; i < column.size(); ++i) column[i] = i % 2;
    BinaryLayout layout;
    layout.ndim = 2;
    layout.shape[0] = rows, layout.shape[1] = cols;
    layout.a_strides[0] = cols, layout.a_strides[1] = 1;
    layout.b_strides[0] = cols, layout.b_strides[1] = 1;
    Guarded<T> y(rows * cols), z(rows * cols);
    cpu::masked_fill(y.data(), x.data(), whole.data(), -3.0, layout, cpu::Stream{});
    layout.b_strides[0] = 1, layout.b_strides[1] = 0;
    cpu::masked_fill(z.data(), x.data(), column.data(), -3.0, layout, cpu::Stream{});
    const auto by_element = y.values(), by_row = z.values();
    for (int64_t i = 0; i < rows * cols; ++i) {
      EXPECT_EQ(to_double(by_element[i]), whole[i] ? -3.0 : to_double(x[i]));
      EXPECT_EQ(to_double(by_row[i]), column[i / cols] ? -3.0 : to_double(x[i]));
    }
  });
}

TEST(CausalMask, LastQuerySeesEveryKey) {
  for (const auto& [Tq, Tk] :
       {std::pair<int64_t, int64_t>{33, 33}, {3, 7}, {7, 3}, {1, 1}, {0, 4}}) {
    const int64_t batch = 2, n = batch * Tq * Tk;
    const auto x = random_vector<float>(n, 1);
    Guarded<float> y(n), in_place(x);
    cpu::causal_mask(y.data(), x.data(), batch, Tq, Tk, -9.0, cpu::Stream{});
    cpu::causal_mask(in_place.data(), in_place.data(), batch, Tq, Tk, -9.0, cpu::Stream{});
    const auto masked = y.values();
    for (int64_t e = 0; e < n; ++e) {
      const int64_t i = e / Tk % Tq, j = e % Tk;
      EXPECT_EQ(masked[e], j <= i + Tk - Tq ? x[e] : -9.0f);
    }
    EXPECT_EQ(in_place.values(), masked);
  }
}

}  // namespace
}  // namespace quern::kernels
