// Sums and maxima over a warp or a 1-d block, in a fixed order: the same values give the same bits.
#pragma once

#include "kernels/cuda/primitives/launch.cuh"

namespace quern::kernels::cuda {

struct SumOp {
  static __device__ __forceinline__ float identity() { return 0.0f; }
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// NaN wins, as in max_forward: a NaN among the values must not be hidden.
struct MaxOp {
  static __device__ __forceinline__ float identity() { return -INFINITY; }
  __device__ __forceinline__ float operator()(float a, float b) const {
    return a > b || a != a ? a : b;
  }
};

// Combines over aligned groups of `kWidth` lanes (a power of two); every lane gets the result, and
// the same bits, since each step combines a pair that both lanes see (a op b == b op a). All 32
// lanes must take part.
template <class Op, int kWidth = kWarpSize, class T>
__device__ __forceinline__ T warp_reduce(T x, Op op) {
#pragma unroll
  for (int offset = kWidth / 2; offset > 0; offset /= 2) {
    x = op(x, __shfl_xor_sync(0xffffffffu, x, offset));
  }
  return x;
}

__device__ __forceinline__ float warp_sum(float x) {
  return warp_reduce(x, SumOp{});
}
__device__ __forceinline__ float warp_max(float x) {
  return warp_reduce(x, MaxOp{});
}

// Combines over the threads of equal threadIdx.y: each of them gets the result. blockDim.x is 32
// (any blockDim.y), or a multiple of 32 in a 1-d block; all threads take part. May be called again
// at once.
template <class Op>
__device__ __forceinline__ float block_reduce(float x, Op op) {
  __shared__ float partial[kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  x = warp_reduce(x, op);
  if (warps == 1) return x;
  __syncthreads();  // the previous call's readers are done
  if (lane == 0) partial[warp] = x;
  __syncthreads();
  return warp_reduce(lane < warps ? partial[lane] : Op::identity(), op);
}

__device__ __forceinline__ float block_sum(float x) {
  return block_reduce(x, SumOp{});
}
__device__ __forceinline__ float block_max(float x) {
  return block_reduce(x, MaxOp{});
}

}  // namespace quern::kernels::cuda
