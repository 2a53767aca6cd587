// Masked and causal fills.
#include "kernels/mask.h"

#include <algorithm>

#include "kernels/common/parallel.h"
#include "kernels/cpu/strided.h"

namespace quern::kernels::cpu {

template <class T>
void masked_fill(T* y, const T* x, const uint8_t* mask, double value, const BinaryLayout& layout,
                 Stream) {
  const T fill = static_cast<T>(static_cast<acc_t<T>>(value));
  const StridedWalk<2> walk(layout.ndim, layout.shape, {layout.a_strides, layout.b_strides});
  const int64_t x_step = walk.col_stride(0), mask_step = walk.col_stride(1);
  walk.parallel_spans([&](int64_t position, const auto& at, int64_t count) {
    T* out = y + position;
    const T* in = x + at[0];
    const uint8_t* hides = mask + at[1];
    if (x_step == 1 && mask_step == 1) {
      vector_for(0, count, [=](int64_t i) { out[i] = hides[i] != 0 ? fill : in[i]; });
    } else {
      for (int64_t i = 0; i < count; ++i) {
        out[i] = hides[i * mask_step] != 0 ? fill : in[i * x_step];
      }
    }
  });
}

template <class T>
void causal_mask(T* y, const T* x, int64_t batch, int64_t Tq, int64_t Tk, double value, Stream) {
  const T fill = static_cast<T>(static_cast<acc_t<T>>(value));
  parallel_rows(batch * Tq, Tk, [=](int64_t row) {
    const int64_t visible = std::clamp<int64_t>(row % Tq + Tk - Tq + 1, 0, Tk);
    if (y != x) std::copy_n(x + row * Tk, visible, y + row * Tk);
    std::fill(y + row * Tk + visible, y + (row + 1) * Tk, fill);
  });
}

#define QUERN_INSTANTIATE(T)                        \
  template decltype(masked_fill<T>) masked_fill<T>; \
  template decltype(causal_mask<T>) causal_mask<T>;
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
QUERN_INSTANTIATE(float16)
QUERN_INSTANTIATE(double)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cpu
