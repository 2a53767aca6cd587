// Pointwise y = f(x) of n elements: a kernel forward, one backward, a functor an op. Memory-bound.
#include "kernels/pointwise.h"

#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// Offset in x of element i, or of the vector that starts there.
__device__ __forceinline__ int64_t place(const PointwiseRows& rows, int64_t i) {
  return rows.cols == 0 ? i : i + i / rows.cols * (rows.pitch - rows.cols);
}

template <class F, class T>
__global__ void forward_kernel(T* y, const T* x, PointwiseRows rows, int64_t n, F f, bool aligned) {
  for_each_vec<kVecSize<T>>(n, aligned, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float v[W];
    load_vec(v, x + place(rows, i));
#pragma unroll
    for (int j = 0; j < W; ++j) v[j] = f.forward(v[j]);
    store_vec(y + i, v);
  });
}

// `saved` is x or y, whichever F reads, in rows.
template <class F, class T>
__global__ void backward_kernel(T* dx, const T* saved, PointwiseRows rows, const T* dy, int64_t n,
                                F f, bool aligned) {
  for_each_vec<kVecSize<T>>(n, aligned, [&](auto width, int64_t i) {
    constexpr int W = decltype(width)::value;
    float s[W] = {}, g[W];
    if constexpr (F::kSaved != Saved::none) load_vec(s, saved + place(rows, i));
    load_vec(g, dy + i);
#pragma unroll
    for (int j = 0; j < W; ++j) g[j] = f.backward(s[j], s[j], g[j]);
    store_vec(dx + i, g);
  });
}

// Whether 16-byte groups of elements are contiguous and aligned to 16 bytes.
template <class T>
bool grouped(std::initializer_list<const void*> arrays, const PointwiseRows& rows) {
  return aligned16(arrays) && rows.cols % kVecSize<T> == 0 && rows.pitch % kVecSize<T> == 0;
}

}  // namespace

template <class T>
void pointwise_forward(T* y, const T* x, const PointwiseRows& rows, int64_t n,
                       const PointwiseOp& op, Stream stream) {
  std::visit(
      [&]<class F>(const F& f) {
        launch(forward_kernel<F, T>, grid_stride_blocks(n, kThreads * kVecSize<T>), kThreads, 0,
               stream, y, x, rows, n, f, grouped<T>({y, x}, rows));
      },
      op);
}

template <class T>
void pointwise_backward(T* dx, const T* x, const PointwiseRows& x_rows, const T* y, const T* dy,
                        int64_t n, const PointwiseOp& op, Stream stream) {
  std::visit(
      [&]<class F>(const F& f) {
        const bool reads_x = F::kSaved == Saved::input;
        const T* saved = F::kSaved == Saved::none ? nullptr : reads_x ? x : y;
        const PointwiseRows rows = reads_x ? x_rows : PointwiseRows{};
        launch(backward_kernel<F, T>, grid_stride_blocks(n, kThreads * kVecSize<T>), kThreads, 0,
               stream, dx, saved, rows, dy, n, f, grouped<T>({dx, saved, dy}, rows));
      },
      op);
}

template decltype(pointwise_forward<float>) pointwise_forward<float>;
template decltype(pointwise_forward<bfloat16>) pointwise_forward<bfloat16>;
template decltype(pointwise_forward<float16>) pointwise_forward<float16>;
template decltype(pointwise_backward<float>) pointwise_backward<float>;
template decltype(pointwise_backward<bfloat16>) pointwise_backward<bfloat16>;
template decltype(pointwise_backward<float16>) pointwise_backward<float16>;

}  // namespace quern::kernels::cuda
