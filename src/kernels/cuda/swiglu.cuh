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

template <class T>
__device__ __forceinline__ float swiglu(float gate, float up) {
  return gate * sigmoid<T>(gate) * up;
}

// The same for kWidth neighbours.
template <class T, int kWidth>
__device__ __forceinline__ void swiglu(float (&out)[kWidth], const float (&gate)[kWidth],
                                       const float (&up)[kWidth]) {
#pragma unroll
  for (int e = 0; e < kWidth; ++e) out[e] = swiglu<T>(gate[e], up[e]);
}

struct SwigluGradients {
  float gate, up, output;  // d_gate, d_up, and the output itself
};

template <class T>
__device__ __forceinline__ SwigluGradients swiglu_gradients(float gate, float up, float grad) {
  const float s = sigmoid<T>(gate);
  return {grad * up * s * (1.0f + gate * (1.0f - s)), gate * s * grad, gate * s * up};
}

// The same for kWidth neighbours.
template <class T, int kWidth>
__device__ __forceinline__ void swiglu_gradients(float (&d_gate)[kWidth], float (&d_up)[kWidth],
                                                 float (&out)[kWidth], const float (&gate)[kWidth],
                                                 const float (&up)[kWidth],
                                                 const float (&grad)[kWidth]) {
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const SwigluGradients d = swiglu_gradients<T>(gate[e], up[e], grad[e]);
    d_gate[e] = d.gate;
    d_up[e] = d.up;
    out[e] = d.output;
  }
}

}  // namespace quern::kernels::cuda
