// SwiGLU of one element, y = silu(gate) up, and its gradients.
#pragma once

#include "kernels/common/pointwise_math.h"

namespace quern::kernels::cpu {

template <class A>
A swiglu(A gate, A up) {
  return Silu{}.forward(gate) * up;
}

template <class A>
struct SwigluGradient {
  A gate, up;
};

template <class A>
SwigluGradient<A> swiglu_gradient(A gate, A up, A dy) {
  const A s = Sigmoid{}.forward(gate);
  return {dy * up * s * (A(1) + gate * (A(1) - s)), dy * gate * s};
}

}  // namespace quern::kernels::cpu
