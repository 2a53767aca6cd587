// SwiGLU over (rows, 2F). Elementwise and bound by memory: forward moves 3 F elements a row,
// backward 5 F.
#include "kernels/swiglu.h"

#include "kernels/common/pointwise_math.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_forward_kernel(T* y, const T* gate_up, int64_t rows, int64_t F, bool vectors) {
  for_each_vec<kVecSize<T>>(rows * F, vectors, [&](auto width, int64_t i) {
    constexpr int kWidth = width;
    const T* gate_at = gate_up + i / F * (2 * F) + i % F;
    float gate[kWidth], up[kWidth], out[kWidth];
    load_vec(gate, gate_at);
    load_vec(up, gate_at + F);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) out[e] = Silu{}.forward(gate[e]) * up[e];
    store_vec(y + i, out);
  });
}

// A thread reads its gate and up before it writes their gradients, so the two may share memory.
template <class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(T* d_gate_up, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                           bool vectors) {
  for_each_vec<kVecSize<T>>(rows * F, vectors, [&](auto width, int64_t i) {
    constexpr int kWidth = width;
    const int64_t gate_at = i / F * (2 * F) + i % F;
    float gate[kWidth], up[kWidth], grad[kWidth], d_gate[kWidth], d_up[kWidth];
    load_vec(gate, gate_up + gate_at);
    load_vec(up, gate_up + gate_at + F);
    load_vec(grad, dy + i);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      d_gate[e] = Silu{}.backward(gate[e], 0.0f, grad[e] * up[e]);
      d_up[e] = Silu{}.forward(gate[e]) * grad[e];
    }
    store_vec(d_gate_up + gate_at, d_gate);
    store_vec(d_gate_up + gate_at + F, d_up);
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
void swiglu_backward(T* d_gate_up, const T* gate_up, const T* dy, int64_t rows, int64_t F,
                     Stream stream) {
  const bool vectors = F % kVecSize<T> == 0 && aligned16({d_gate_up, gate_up, dy});
  launch(swiglu_backward_kernel<T>,
         grid_stride_blocks(rows * F, vectors ? kThreads * kVecSize<T> : kThreads), dim3(kThreads),
         0, stream, d_gate_up, gate_up, dy, rows, F, vectors);
}

template void swiglu_forward<float>(float*, const float*, int64_t, int64_t, Stream);
template void swiglu_forward<bfloat16>(bfloat16*, const bfloat16*, int64_t, int64_t, Stream);
template void swiglu_backward<float>(float*, const float*, const float*, int64_t, int64_t, Stream);
template void swiglu_backward<bfloat16>(bfloat16*, const bfloat16*, const bfloat16*, int64_t,
                                        int64_t, Stream);

}  // namespace quern::kernels::cuda
