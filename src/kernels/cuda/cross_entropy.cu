// Cross-entropy of logits (N, V), row by row; cross_entropy_one_pass.cu has both passes in one,
// cross_entropy_mean.cu the mean. A warp or a block takes a row. The forward reads it once, with an
// online maximum and sum; the backward reads and writes it once. Bound by memory.
#include "kernels/cross_entropy.h"

#include "kernels/cuda/cross_entropy.cuh"

namespace quern::kernels::cuda {

namespace {

template <class T, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_forward_kernel(float* row_loss, float* lse, const T* logits,
                                 const int32_t* targets, int64_t N, int64_t V, int32_t ignore_index,
                                 bool vectors) {
  for_each_row<kGroup>(N, [&](int64_t row) {
    const T* const x = logits + row * V;
    RunningSum running;
    for_each_in_row<kGroup, kVecSize<T>>(V, vectors, [&](auto width, int64_t i) {
      float values[width];
      load_vec(values, x + i);
      running.add(values);
    });
    const float row_lse = logsumexp<kGroup>(running);
    if (group_lane<kGroup>() != 0) return;
    const int32_t target = targets[row];
    lse[row] = row_lse;
    if (target == ignore_index) {
      row_loss[row] = 0.0f;
    } else {
      row_loss[row] = target >= 0 && target < V ? row_lse - to_float(x[target]) : NAN;
    }
  });
}

// An element is read before the same thread writes it, so dlogits may be logits.
template <class T, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_backward_kernel(T* dlogits, const T* logits, const float* lse,
                                  const int32_t* targets, const float* scale, const float* dloss,
                                  int64_t N, int64_t V, int32_t ignore_index, bool vectors) {
  const float factor = dloss != nullptr ? scale[0] * dloss[0] : scale[0];
  for_each_row<kGroup>(N, [&](int64_t row) {
    const int32_t target = targets[row];
    const bool ignored = target == ignore_index;
    const float logsumexp = lse[row];
    for_each_in_row<kGroup, kVecSize<T>>(V, vectors, [&](auto width, int64_t i) {
      constexpr int kWidth = width;
      float x[kWidth];
      load_vec(x, logits + row * V + i);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        const float p = expf(x[e] - logsumexp);
        x[e] = ignored ? 0.0f : (p - (i + e == target ? 1.0f : 0.0f)) * factor;
      }
      store_vec(dlogits + row * V + i, x);
    });
  });
}

}  // namespace

template <class T>
void cross_entropy_forward(acc_t<T>* row_loss, acc_t<T>* lse, const T* logits,
                           const int32_t* targets, int64_t N, int64_t V, int32_t ignore_index,
                           Stream stream) {
  const bool vectors = V % kVecSize<T> == 0 && aligned16({logits});
  launch_rows(cross_entropy_forward_kernel<T, kWarpSize>,
              cross_entropy_forward_kernel<T, kBlockGroup>, N, V, stream, row_loss, lse, logits,
              targets, N, V, ignore_index, vectors);
}

template <class T>
void cross_entropy_backward(T* dlogits, const T* logits, const acc_t<T>* lse,
                            const int32_t* targets, const acc_t<T>* scale, const acc_t<T>* dloss,
                            int64_t N, int64_t V, int32_t ignore_index, Stream stream) {
  const bool vectors = V % kVecSize<T> == 0 && aligned16({dlogits, logits});
  launch_rows(cross_entropy_backward_kernel<T, kWarpSize>,
              cross_entropy_backward_kernel<T, kBlockGroup>, N, V, stream, dlogits, logits, lse,
              targets, scale, dloss, N, V, ignore_index, vectors);
}

template decltype(cross_entropy_forward<float>) cross_entropy_forward<float>;
template decltype(cross_entropy_forward<bfloat16>) cross_entropy_forward<bfloat16>;
template decltype(cross_entropy_backward<float>) cross_entropy_backward<float>;
template decltype(cross_entropy_backward<bfloat16>) cross_entropy_backward<bfloat16>;

}  // namespace quern::kernels::cuda
