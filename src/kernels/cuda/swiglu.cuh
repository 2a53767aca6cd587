// SwiGLU's arithmetic, one element at a time.
#pragma once

#include <type_traits>

#include "kernels/cuda/vec.cuh"

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

struct SwigluGradients {
  float gate, up, output;  // d_gate, d_up, and the output itself
};

template <class T>
__device__ __forceinline__ SwigluGradients swiglu_gradients(float gate, float up, float grad) {
  const float s = sigmoid<T>(gate);
  return {grad * up * s * (1.0f + gate * (1.0f - s)), gate * s * grad, gate * s * up};
}

}  // namespace quern::kernels::cuda
