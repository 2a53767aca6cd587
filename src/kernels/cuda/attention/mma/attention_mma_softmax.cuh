// The online softmax of the forwards by mma.sync, of BF16 and of FP32 tensors.
#pragma once

#include "kernels/cuda/attention/mma/attention_mma_place.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/reduce.cuh"

namespace quern::kernels::cuda {

// The online softmax (Milakov and Gimelshein, 2018) of a warp's rows, in units of log2 and with the
// scale folded in: p = 2^(scale2 s - base). Any base near the row's maximum gives the same
// quotient, and P of any size below overflow is as exact as P up to 1. So only the first tile is
// searched for its maximum. In later ones the sums of weights show when the base must follow. They
// also show scores that jump by more than floats can hold. Then all tiles are repeated, searching
// each one's maximum.
template <int kM>
struct OnlineSoftmax {
  static constexpr float kMost = 0x1p10f;      // a lane's weights in a tile; above, the base moves
  static constexpr float kOverflow = 0x1p60f;  // above, the products may overflow
  float base[kM][2];
  float sum[kM][2];  // of this lane's columns only, until `finish`
  bool overflow = false;

  __device__ OnlineSoftmax() {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) base[r / 2][r % 2] = sum[r / 2][r % 2] = 0.0f;
  }

  // Raises the base to these scores' maximum; in the first tile also lowers it. Earlier sums must
  // be multiplied by `rescale`.
  template <int kN>
  __device__ __forceinline__ void raise(const float (&scores)[kM][kN][4], float scale2, bool first,
                                        float (&rescale)[kM][2]) {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int m = r / 2, half = r % 2;
      float highest = -INFINITY;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
      highest = scale2 * fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
      const bool moves = highest > (first ? -INFINITY : base[m][half]);  // not without keys
      rescale[m][half] = moves && !first ? fast_exp2(base[m][half] - highest) : 1.0f;
      if (moves) base[m][half] = highest;
      sum[m][half] *= rescale[m][half];
    }
  }

  // Replaces scores by P, not yet divided by the sum. Returns in `weights` the argument of `add`.
  template <int kN>
  __device__ __forceinline__ void exponentiate(float (&scores)[kM][kN][4], float scale2,
                                               float (&weights)[kM][2]) const {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int m = r / 2, half = r % 2;
      weights[m][half] = 0.0f;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = fast_exp2(fmaf(scores[m][n][i], scale2, -base[m][half]));
          weights[m][half] += scores[m][n][i];
        }
      }
    }
  }

  // Adds a tile's weights. Returns whether they were so large that the base moved; earlier sums
  // must then be multiplied by `rescale`.
  __device__ __forceinline__ bool add(const float (&weights)[kM][2], float (&rescale)[kM][2]) {
    bool small = true;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      sum[r / 2][r % 2] += weights[r / 2][r % 2];
      small = small && weights[r / 2][r % 2] <= kMost;
    }
    if (__all_sync(0xffffffffu, small)) return false;
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const int m = r / 2, half = r % 2;
      const float total = warp_reduce<SumOp, 4>(weights[m][half], SumOp{});
      overflow = overflow || !(total <= kOverflow);
      const float moved = total > kMost && total <= kOverflow ? ceilf(log2f(total)) : 0.0f;
      rescale[m][half] = exp2f(-moved);
      base[m][half] += moved;
      sum[m][half] *= rescale[m][half];
    }
    return true;
  }

  // Sets `inverse` to 1 / sum, or 0 for a row without keys.
  __device__ __forceinline__ void finish(float (&inverse)[kM][2]) {
#pragma unroll
    for (int r = 0; r < 2 * kM; ++r) {
      const float total = warp_reduce<SumOp, 4>(sum[r / 2][r % 2], SumOp{});
      sum[r / 2][r % 2] = total;
      inverse[r / 2][r % 2] = total == 0.0f ? 0.0f : 1.0f / total;
    }
  }

  __device__ __forceinline__ float logsumexp(int m, int half) const {
    return base[m][half] * kLn2 + logf(sum[m][half]);
  }
};

template <int kM, int kF>
__device__ __forceinline__ void scale_rows(float (&out)[kM][kF][4], const float (&factor)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int f = 0; f < kF; ++f) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[m][f][i] *= factor[m][i / 2];
    }
  }
}

}  // namespace quern::kernels::cuda
