// SwiGLU's arithmetic.
#pragma once

#include <type_traits>

#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

// 1 / (1 + exp(-x)), as exactly as a result that is stored as T needs.
template <class T>
__device__ __forceinline__ float sigmoid(float x) {
  const float denominator = 1.0f + exp_for<T>(-x);
  if constexpr (std::is_same_v<T, float>) {
    return 1.0f / denominator;
  } else {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(denominator));
    return y;
  }
}

// out = silu(gate) up for kWidth neighbours.
template <class T, int kWidth>
__device__ __forceinline__ void swiglu(float (&out)[kWidth], const float (&gate)[kWidth],
                                       const float (&up)[kWidth]) {
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out[e] = gate[e] * sigmoid<T>(gate[e]) * up[e];
}

// The gradients of gate and up, and the output itself.
template <class T, int kWidth>
__device__ __forceinline__ void swiglu_gradients(float (&d_gate)[kWidth], float (&d_up)[kWidth],
                                                 float (&out)[kWidth], const float (&gate)[kWidth],
                                                 const float (&up)[kWidth],
                                                 const float (&grad)[kWidth]) {
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const float s = sigmoid<T>(gate[e]);
    d_gate[e] = grad[e] * up[e] * s * (1.0f + gate[e] * (1.0f - s));
    d_up[e] = gate[e] * s * grad[e];
    out[e] = gate[e] * s * up[e];
  }
}

}  // namespace quern::kernels::cuda
