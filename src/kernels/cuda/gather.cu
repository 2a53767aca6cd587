// y[o, j, i] = x[o, index[o, j, i], i], y (outer, m, inner), x (outer, n, inner); bound by memory.
// Backward: the first of a column's equal indices sums for all, in the order of j, and writes.
#include "kernels/gather.h"

#include "kernels/copy.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void forward_kernel(T* y, const T* x, const int64_t* index, GatherShape s) {
  for_each_index(s.outer * s.m * s.inner, [&](int64_t e) {
    const int64_t i = e % s.inner, o = e / s.inner / s.m, k = index[e];
    y[e] = k >= 0 && k < s.n ? x[(o * s.n + k) * s.inner + i] : from_float<T>(NAN);
  });
}

template <class T>
__global__ void backward_kernel(T* dx, const T* dy, const int64_t* index, GatherShape s) {
  for_each_index(s.outer * s.m * s.inner, [&](int64_t e) {
    const int64_t i = e % s.inner, j = e / s.inner % s.m, o = e / s.inner / s.m, k = index[e];
    if (k < 0 || k >= s.n) return;
    const int64_t column = o * s.m * s.inner + i;  // of index and dy, j = 0
    bool first = true;
    for (int64_t before = 0; before < j && first; ++before) {
      first = index[column + before * s.inner] != k;
    }
    if (!first) return;
    float sum = to_float(dy[e]);
    for (int64_t after = j + 1; after < s.m; ++after) {
      const int64_t at = column + after * s.inner;
      if (index[at] == k) sum += to_float(dy[at]);
    }
    dx[(o * s.n + k) * s.inner + i] = from_float<T>(sum);
  });
}

}  // namespace

template <class T>
void gather_forward(T* y, const T* x, const int64_t* index, const GatherShape& s, Stream stream) {
  launch(forward_kernel<T>, grid_stride_blocks(s.outer * s.m * s.inner, kThreads), kThreads, 0,
         stream, y, x, index, s);
}

template <class T>
void gather_backward(T* dx, const T* dy, const int64_t* index, const GatherShape& s,
                     Stream stream) {
  fill(dx, dtype_of<T>, s.outer * s.n * s.inner, 0.0, stream);
  launch(backward_kernel<T>, grid_stride_blocks(s.outer * s.m * s.inner, kThreads), kThreads, 0,
         stream, dx, dy, index, s);
}

template decltype(gather_forward<float>) gather_forward<float>;
template decltype(gather_forward<bfloat16>) gather_forward<bfloat16>;
template decltype(gather_forward<float16>) gather_forward<float16>;
template decltype(gather_backward<float>) gather_backward<float>;
template decltype(gather_backward<bfloat16>) gather_backward<bfloat16>;
template decltype(gather_backward<float16>) gather_backward<float16>;

}  // namespace quern::kernels::cuda
