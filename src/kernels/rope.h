// Rotary position embedding (Su et al., 2021), rotating halves as Hugging Face's Llama does:
// y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin, with x1 = x[..., :D/2], x2 = x[..., D/2:].
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/common/rope_frequency.h"

namespace quern::kernels {

struct RopeLayout {
  int64_t B = 0, T = 0, H = 0, D = 0;
  int64_t x_strides[3] = {};  // elements between neighbours along B, T, H
  int64_t y_strides[3] = {};
  int64_t first_position = 0;
  bool positions_per_batch = false;
  int64_t table_rows = 0;  // max_positions; needed only with positions
};

namespace cpu {
// x and y: (B, T, H, D) by strides, D contiguous; y may be x. cos, sin: (max_positions, D/2),
// acc_t<T>. positions: (T) or, with layout.positions_per_batch, (B, T); null means 0..T-1 plus
// layout.first_position. One beyond the table throws on the CPU, and gives NaN on a GPU. `inverse`
// rotates back: the backward. T: float, bfloat16, and on the CPU double.
template <class T>
void rope(T* y, const T* x, const acc_t<T>* cos, const acc_t<T>* sin, const int32_t* positions,
          const RopeLayout& layout, bool inverse, Stream stream);

// cos[p, i] and sin[p, i] of p * rope_frequency(i, D, theta, scaling), i < D/2, the angle computed
// in double. A: float, and on the CPU double.
template <class A>
void rope_table(A* cos, A* sin, int64_t positions, int64_t D, double theta,
                const RopeScaling& scaling, Stream stream);
}  // namespace cpu

namespace cuda {
template <class T>
void rope(T* y, const T* x, const acc_t<T>* cos, const acc_t<T>* sin, const int32_t* positions,
          const RopeLayout& layout, bool inverse, Stream stream);
template <class A>
void rope_table(A* cos, A* sin, int64_t positions, int64_t D, double theta,
                const RopeScaling& scaling, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
