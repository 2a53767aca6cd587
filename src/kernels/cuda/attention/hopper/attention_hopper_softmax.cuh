// The softmax of scores as wgmma leaves them in registers: each thread holds parts of two rows, 8
// apart, and each row lies in the four threads of a quad.
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper.cuh"

namespace quern::kernels::cuda {

// The online softmax (Milakov and Gimelshein, 2018) of a thread's two rows of S.
struct RowSoftmax {
  float max[2] = {-INFINITY, -INFINITY};  // of unscaled scores
  float sum[2] = {0.0f, 0.0f};            // of this thread's columns, until `finish`
  float rescale[2];                       // the factor of earlier sums

  // Replaces scores by exp(scale (scores - new maximum)).
  template <int kRegisters>
  __device__ __forceinline__ void update(float (&scores)[kRegisters], float scale_log2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float highest = row_max(scores, i, max[i]);
      // -inf - -inf would be NaN
      const float base = highest == -INFINITY ? 0.0f : highest * scale_log2;
      rescale[i] = fast_exp2(max[i] * scale_log2 - base);
      max[i] = highest;
      float added[2] = {sum[i] * rescale[i], 0.0f};
#pragma unroll
      for (int c = 2 * i; c < kRegisters; c += 4) {
        added[0] += scores[c] = fast_exp2(fmaf(scores[c], scale_log2, -base));
        added[1] += scores[c + 1] = fast_exp2(fmaf(scores[c + 1], scale_log2, -base));
      }
      sum[i] = added[0] + added[1];
    }
  }
  // Sets `inverse` to 1 / sum, or 0 for a row without keys.
  __device__ __forceinline__ void finish(float (&inverse)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] = quad_sum(sum[i]);
      inverse[i] = sum[i] == 0.0f ? 0.0f : 1.0f / sum[i];
    }
  }
};

}  // namespace quern::kernels::cuda
