// SwiGLU over (rows, 2F). Elementwise and bound by memory: forward moves 3 F elements a row,
// backward 5 F, and 6 F when it gives the output too.
#include "kernels/swiglu.h"

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(T* y, const T* gate_up, int64_t rows, int64_t F, bool vectors) {
  for_each_vec<kVecSize<T>>(rows * F, vectors, [&](auto width, int64_t i) {
    constexpr int kWidth = width;
    const T* const gate_at = gate_up + i + i / F * F;  // each row before has F more elements there
    const Raw<T, kWidth> raw_gate = load_raw<kWidth>(gate_at);
    const Raw<T, kWidth> raw_up = load_raw<kWidth>(gate_at + F);
    float gate[kWidth], up[kWidth], out[kWidth];
    unpack<T>(gate, raw_gate);
    unpack<T>(up, raw_up);
    swiglu<T>(out, gate, up);
    store_raw(y + i, out);
  });
}

// A thread reads all its inputs before it writes: d_gate_up may be gate_up, and y, written if
// kOutput, may be dy.
template <bool kOutput, class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(T* d_gate_up, T* y, const T* gate_up, const T* dy, int64_t rows,
                           int64_t F, bool vectors) {
  for_each_vec<kVecSize<T>>(rows * F, vectors, [&](auto width, int64_t i) {
    constexpr int kWidth = width;
    const int64_t gate_at = i + i / F * F;
    const Raw<T, kWidth> raw_gate = load_raw<kWidth>(gate_up + gate_at);
    const Raw<T, kWidth> raw_up = load_raw<kWidth>(gate_up + gate_at + F);
    const Raw<T, kWidth> raw_grad = load_raw<kWidth>(dy + i);
    float gate[kWidth], up[kWidth], grad[kWidth], d_gate[kWidth], d_up[kWidth], out[kWidth];
    unpack<T>(gate, raw_gate);
    unpack<T>(up, raw_up);
    unpack<T>(grad, raw_grad);
    swiglu_gradients<T>(d_gate, d_up, out, gate, up, grad);
    store_raw(d_gate_up + gate_at, d_gate);
    store_raw(d_gate_up + gate_at + F, d_up);
    if constexpr (kOutput) store_raw(y + i, out);
  });
}

}  // namespace

template <class T>
void swiglu_forward(T* y, const T* gate_up, int64_t rows, int64_t F, Stream stream) {
  const bool vectors = F % kVecSize<T> == 0 && aligned16({y, gate_up});
  launch(swiglu_forward_kernel<T>,
         grid_stride_blocks(rows * F, vectors ? kThreads * kVecSize<T> : kThreads), dim3(kThreads),
         0, stream, y, gate_up, rows, F, vectors);
}

template <class T>
void swiglu_backward(T* d_gate_up, T* y, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream stream) {
  const bool vectors = F % kVecSize<T> == 0 && aligned16({d_gate_up, y, gate_up, dy});
  launch(y != nullptr ? swiglu_backward_kernel<true, T> : swiglu_backward_kernel<false, T>,
         grid_stride_blocks(rows * F, vectors ? kThreads * kVecSize<T> : kThreads), dim3(kThreads),
         0, stream, d_gate_up, y, gate_up, dy, rows, F, vectors);
}

template decltype(swiglu_forward<float>) swiglu_forward<float>;
template decltype(swiglu_forward<bfloat16>) swiglu_forward<bfloat16>;
template decltype(swiglu_backward<float>) swiglu_backward<float>;
template decltype(swiglu_backward<bfloat16>) swiglu_backward<bfloat16>;

}  // namespace quern::kernels::cuda
