// SwiGLU: y = silu(gate) up with gate and up the halves of each row; the backward recomputes the
// sigmoid.
#include "kernels/swiglu.h"

#include "kernels/common/parallel.h"
#include "kernels/cpu/swiglu_math.h"

namespace quern::kernels::cpu {

template <class T>
void swiglu_forward(T* y, const T* gate_up, int64_t rows, int64_t F, Stream) {
  using A = acc_t<T>;
  parallel_rows(rows, F, [=](int64_t r) {
    const T *gate = gate_up + 2 * r * F, *up = gate + F;
    T* out = y + r * F;
    vector_for(0, F, [=](int64_t i) {
      out[i] = static_cast<T>(swiglu(static_cast<A>(gate[i]), static_cast<A>(up[i])));
    });
  });
}

namespace {

// y: memory of the output, which may be dy; only with kOutput.
template <bool kOutput, class T>
void backward(T* d_gate_up, T* y, const T* gate_up, const T* dy, int64_t rows, int64_t F) {
  using A = acc_t<T>;
  parallel_rows(rows, F, [=](int64_t r) {
    const T *gate = gate_up + 2 * r * F, *up = gate + F, *grad = dy + r * F;
    T *d_gate = d_gate_up + 2 * r * F, *d_up = d_gate + F, *out = y + r * F;
    vector_for(0, F, [=](int64_t i) {
      const A g = static_cast<A>(gate[i]), u = static_cast<A>(up[i]);
      const SwigluGradient<A> d = swiglu_gradient(g, u, static_cast<A>(grad[i]));
      if constexpr (kOutput) out[i] = static_cast<T>(swiglu(g, u));  // y may be dy
      d_gate[i] = static_cast<T>(d.gate);
      d_up[i] = static_cast<T>(d.up);
    });
  });
}

}  // namespace

template <class T>
void swiglu_backward(T* d_gate_up, T* y, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream) {
  if (y == nullptr) {
    backward<false>(d_gate_up, d_gate_up, gate_up, dy, rows, F);
  } else {
    backward<true>(d_gate_up, y, gate_up, dy, rows, F);
  }
}

template decltype(swiglu_forward<float>) swiglu_forward<float>;
template decltype(swiglu_forward<bfloat16>) swiglu_forward<bfloat16>;
template decltype(swiglu_forward<double>) swiglu_forward<double>;
template decltype(swiglu_backward<float>) swiglu_backward<float>;
template decltype(swiglu_backward<bfloat16>) swiglu_backward<bfloat16>;
template decltype(swiglu_backward<double>) swiglu_backward<double>;

}  // namespace quern::kernels::cpu
