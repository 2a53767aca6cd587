// Shared by the cross-entropy kernels: a row's logsumexp in one pass over it.
#pragma once

#include "kernels/cuda/primitives/instructions.cuh"
#include "kernels/cuda/primitives/row.cuh"

namespace quern::kernels::cuda {

// Relative error 2^-22 and half an ulp of x log2(e); results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
  return fast_exp2(x * kLog2e);
}

// sum of exp(x - max) over the elements so far (Milakov and Gimelshein, 2018). A NaN among the
// logits shows in the sum, not in the maximum.
struct RunningSum {
  float max = -INFINITY;
  float sum = 0.0f;

  // The exponent's zero point: -inf - -inf would be NaN.
  static __device__ float base(float max) { return max == -INFINITY ? 0.0f : max; }

  template <int kWidth>
  __device__ __forceinline__ void add(const float (&x)[kWidth]) {
    float highest = max;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) highest = fmaxf(highest, x[e]);
    if (highest > max) {
      sum *= fast_exp(max - highest);
      max = highest;
    }
    const float zero = base(max);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum += fast_exp(x[e] - zero);
  }
};

// logsumexp of a row from its threads' parts. kBlockGroup stands for a block of any size.
template <int kGroup>
__device__ __forceinline__ float logsumexp(const RunningSum& part) {
  const float max = group_max<kGroup>(part.max);
  const float share = part.sum * fast_exp(part.max - RunningSum::base(max));
  return max + logf(group_sum<kGroup>(share));
}

}  // namespace quern::kernels::cuda
