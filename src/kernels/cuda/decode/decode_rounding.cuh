// The arithmetic that decoding's kernels share. It has few instructions, since each of them is
// fetched again for each token.
#pragma once

#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

// Rounds x to T, as a store and a load by separate kernels would.
template <class T>
__device__ __forceinline__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

// 1 over the root mean square of `count` elements whose squares sum to `sum`; 2^-22 off at most.
__device__ __forceinline__ float norm_factor(float sum, int64_t count, double eps) {
  return rsqrtf(__fdividef(sum, static_cast<float>(count)) + static_cast<float>(eps));
}

}  // namespace quern::kernels::cuda
