// y (rows) = x (rows, C) w. Memory-bound: forward reads x; backward writes dx, and reads x for dw.
#include "kernels/weighted_sum.h"

#include "kernels/cuda/primitives/column_sum.cuh"
#include "kernels/cuda/primitives/row.cuh"

namespace quern::kernels::cuda {

namespace {

template <class T, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    weighted_sum_forward_kernel(T* y, const T* x, const T* w, int64_t rows, int64_t C,
                                bool vectors) {
  for_each_row<kGroup>(rows, [&](int64_t row) {
    float sum = 0.0f;
    for_each_in_row<kGroup, kVecSize<T>>(C, vectors, [&](auto width, int64_t i) {
      constexpr int kWidth = width;
      float values[kWidth], weights[kWidth];
      load_vec(values, x + row * C + i);
      load_vec(weights, w + i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) sum = fmaf(values[e], weights[e], sum);
    });
    sum = group_sum<kGroup>(sum);
    if (group_lane<kGroup>() == 0) y[row] = from_float<T>(sum);
  });
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    weighted_sum_dx_kernel(T* dx, const T* dy, const T* w, int64_t rows, int64_t C, bool vectors) {
  for_each_vec<kVecSize<T>>(rows * C, vectors, [&](auto width, int64_t i) {
    constexpr int kWidth = width;
    const float grad = to_float(dy[i / C]);
    float weights[kWidth];
    load_vec(weights, w + i % C);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) weights[e] *= grad;
    store_vec(dx + i, weights);
  });
}

template <class T>
struct WeightGradient {
  const T* dy;
  const T* x;
  int64_t C;
  __device__ float operator()(int64_t row, int64_t c) const {
    return to_float(dy[row]) * to_float(x[row * C + c]);
  }
};

}  // namespace

template <class T>
void weighted_sum_forward(T* y, const T* x, const T* w, int64_t rows, int64_t C, Stream stream) {
  const bool vectors = C % kVecSize<T> == 0 && aligned16({x, w});
  launch_rows(weighted_sum_forward_kernel<T, kWarpSize>,
              weighted_sum_forward_kernel<T, kBlockGroup>, rows, C, stream, y, x, w, rows, C,
              vectors);
}

template <class T>
void weighted_sum_backward(T* dx, acc_t<T>* dw, const T* dy, const T* x, const T* w, int64_t rows,
                           int64_t C, bool add_dw, void* scratch, Stream stream) {
  if (dw != nullptr) {
    column_sum(dw, WeightGradient<T>{dy, x, C}, rows, C, add_dw, scratch, stream);
  }
  if (dx == nullptr) return;
  const bool vectors = C % kVecSize<T> == 0 && aligned16({dx, w});
  launch(weighted_sum_dx_kernel<T>,
         grid_stride_blocks(rows * C, vectors ? kRowThreads * kVecSize<T> : kRowThreads),
         dim3(kRowThreads), 0, stream, dx, dy, w, rows, C, vectors);
}

template decltype(weighted_sum_forward<float>) weighted_sum_forward<float>;
template decltype(weighted_sum_forward<bfloat16>) weighted_sum_forward<bfloat16>;
template decltype(weighted_sum_backward<float>) weighted_sum_backward<float>;
template decltype(weighted_sum_backward<bfloat16>) weighted_sum_backward<bfloat16>;

}  // namespace quern::kernels::cuda
