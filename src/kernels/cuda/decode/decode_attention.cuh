// Attention over a key/value cache for one new token: the sizes of its division, and a warp's work
// on the token's own heads. See decode_attention_part.cuh.
#pragma once

#include <algorithm>

#include "kernels/cuda/decode/decode_rounding.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/decode_attention.h"

namespace quern::kernels::cuda {

inline constexpr int kPartWarps = 4, kPartThreads = kPartWarps * kWarpSize;
inline constexpr int kHeadParts = 8;     // parts of kPartWarps warps that share a head's keys
inline constexpr int kLaneElements = 8;  // of a head that a lane holds

// The warp's number in its part, and the thread's.
__device__ __forceinline__ int part_warp() {
  return static_cast<int>(threadIdx.x) / kWarpSize % kPartWarps;
}
__device__ __forceinline__ int part_thread() {
  return static_cast<int>(threadIdx.x) % kPartThreads;
}

// One head of the new token as a warp holds it: element i < D / 2 is x1[j] of the lane with
// i = lane + 32 j, element i + D / 2 its x2[j]. D is at most 64 kPairs.
template <class T, int kPairs>
struct TokenHead {
  float x1[kPairs], x2[kPairs];

  // RMSNorm by `norm` unless it is null.
  __device__ __forceinline__ void normalize(const float* norm, const DecodeAttention<T>& a) {
    if (norm == nullptr) return;
    const int half = static_cast<int>(a.D / 2), lane = static_cast<int>(threadIdx.x) % kWarpSize;
    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      squares = fmaf(x1[j], x1[j], fmaf(x2[j], x2[j], squares));
    }
    const float r = norm_factor(warp_sum(squares), a.D, a.eps);
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      if (i >= half) continue;
      x1[j] = rounded<T>(__ldg(norm + i) * (x1[j] * r));
      x2[j] = rounded<T>(__ldg(norm + i + half) * (x2[j] * r));
    }
  }
  __device__ __forceinline__ void rotate(const float (&cos)[kPairs], const float (&sin)[kPairs]) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const float y1 = rounded<T>(x1[j] * cos[j] - x2[j] * sin[j]);
      x2[j] = rounded<T>(x2[j] * cos[j] + x1[j] * sin[j]);
      x1[j] = y1;
    }
  }
  template <class Out>
  __device__ __forceinline__ void store(Out* y, float factor, int64_t D) const {
    const int half = static_cast<int>(D / 2), lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int i = lane + j * kWarpSize;
      if (i >= half) continue;
      y[i] = from_float<Out>(x1[j] * factor);
      y[i + half] = from_float<Out>(x2[j] * factor);
    }
  }
};

}  // namespace quern::kernels::cuda
