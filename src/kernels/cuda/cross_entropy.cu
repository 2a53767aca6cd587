// Cross-entropy of logits (N, V). A warp or a block takes a row: the forward reads it once, with an
// online maximum and sum; the backward reads and writes it once. Bound by memory.
#include "kernels/cross_entropy.h"

#include "kernels/cuda/row.cuh"

namespace quern::kernels::cuda {

namespace {

// sum of exp(x - max) over what was seen so far (Milakov and Gimelshein, 2018).
struct RunningSum {
  float max = -INFINITY;
  float sum = 0.0f;

  // The exponent's zero point: -inf - -inf would be NaN.
  static __device__ float base(float max) { return max == -INFINITY ? 0.0f : max; }

  template <int kWidth>
  __device__ void add(const float (&x)[kWidth]) {
    float highest = max;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) highest = MaxOp{}(highest, x[e]);
    sum *= expf(max - base(highest));
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum += expf(x[e] - base(highest));
    max = highest;
  }
};

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
    const float max = group_max<kGroup>(running.max);
    const float share = running.sum * expf(running.max - RunningSum::base(max));
    const float logsumexp = max + logf(group_sum<kGroup>(share));
    if (group_lane<kGroup>() != 0) return;
    const int32_t target = targets[row];
    lse[row] = logsumexp;
    if (target == ignore_index) {
      row_loss[row] = 0.0f;
    } else {
      row_loss[row] = target >= 0 && target < V ? logsumexp - to_float(x[target]) : NAN;
    }
  });
}

// One block, so that the order is fixed.
__global__ void cross_entropy_mean_kernel(float* loss, float* inverse_count, const float* row_loss,
                                          const int32_t* targets, int64_t n, int32_t ignore_index) {
  __shared__ unsigned long long total_count;
  if (threadIdx.x == 0) total_count = 0;
  __syncthreads();
  float sum = 0.0f;
  unsigned long long count = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    sum += row_loss[i];
    count += targets[i] != ignore_index;
  }
  atomicAdd(&total_count, count);  // integers: any order gives the same count
  sum = block_sum(sum);            // its barriers also wait for the count
  if (threadIdx.x != 0) return;
  const float kept = static_cast<float>(total_count);
  loss[0] = total_count == 0 ? 0.0f : sum / kept;
  inverse_count[0] = total_count == 0 ? 0.0f : 1.0f / kept;
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

template <class A>
void cross_entropy_mean(A* loss, A* inverse_count, const A* row_loss, const int32_t* targets,
                        int64_t n, int32_t ignore_index, Stream stream) {
  launch(cross_entropy_mean_kernel, dim3(1), dim3(1024), 0, stream, loss, inverse_count, row_loss,
         targets, n, ignore_index);
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

#define QUERN_INSTANTIATE(T)                                                                      \
  template void cross_entropy_forward<T>(acc_t<T>*, acc_t<T>*, const T*, const int32_t*, int64_t, \
                                         int64_t, int32_t, Stream);                               \
  template void cross_entropy_backward<T>(T*, const T*, const acc_t<T>*, const int32_t*,          \
                                          const acc_t<T>*, const acc_t<T>*, int64_t, int64_t,     \
                                          int32_t, Stream);
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
#undef QUERN_INSTANTIATE
template void cross_entropy_mean<float>(float*, float*, const float*, const int32_t*, int64_t,
                                        int32_t, Stream);

}  // namespace quern::kernels::cuda
