// The pointwise family: one kernel forward, one backward, a functor an op; bound by memory.
#include "kernels/pointwise.h"

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class F, class T>
__global__ void forward_kernel(T* y, const T* x, int64_t n, F f, bool aligned) {
  for_each_vec<kVecSize<T>>(n, aligned, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    load_vec(v, x + i);
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = f.forward(v[j]);
    store_vec(y + i, v);
  });
}

// `saved` is x or y, whichever F reads.
template <class F, class T>
__global__ void backward_kernel(T* dx, const T* saved, const T* dy, int64_t n, F f, bool aligned) {
  for_each_vec<kVecSize<T>>(n, aligned, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float s[W] = {}, g[W];
    if constexpr (F::kSaved != Saved::none) load_vec(s, saved + i);
    load_vec(g, dy + i);
#pragma unroll
    for (int j = 0; j < W; ++j) g[j] = f.backward(s[j], s[j], g[j]);
    store_vec(dx + i, g);
  });
}

}  // namespace

template <class F, class T>
void pointwise_forward(T* y, const T* x, int64_t n, F f, Stream stream) {
  launch(forward_kernel<F, T>, grid_stride_blocks(n, kThreads * kVecSize<T>), kThreads, 0, stream,
         y, x, n, f, aligned16({y, x}));
}

template <class F, class T>
void pointwise_backward(T* dx, const T* x, const T* y, const T* dy, int64_t n, F f, Stream stream) {
  const T* saved = F::kSaved == Saved::output ? y : x;
  if constexpr (F::kSaved == Saved::none) saved = nullptr;
  launch(backward_kernel<F, T>, grid_stride_blocks(n, kThreads * kVecSize<T>), kThreads, 0, stream,
         dx, saved, dy, n, f, aligned16({dx, saved, dy}));
}

#define QUERN_INSTANTIATE(F, T)                                            \
  template void pointwise_forward<F, T>(T*, const T*, int64_t, F, Stream); \
  template void pointwise_backward<F, T>(T*, const T*, const T*, const T*, int64_t, F, Stream);
#define QUERN_INSTANTIATE_TYPES(F) \
  QUERN_INSTANTIATE(F, float) QUERN_INSTANTIATE(F, bfloat16) QUERN_INSTANTIATE(F, float16)

QUERN_INSTANTIATE_TYPES(Exp)
QUERN_INSTANTIATE_TYPES(Log)
QUERN_INSTANTIATE_TYPES(Tanh)
QUERN_INSTANTIATE_TYPES(Sigmoid)
QUERN_INSTANTIATE_TYPES(Relu)
QUERN_INSTANTIATE_TYPES(Silu)
QUERN_INSTANTIATE_TYPES(GeluTanh)
QUERN_INSTANTIATE_TYPES(GeluErf)
QUERN_INSTANTIATE_TYPES(Pow)
QUERN_INSTANTIATE_TYPES(Scale)

#undef QUERN_INSTANTIATE_TYPES
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
