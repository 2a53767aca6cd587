// Cross-entropy of logits (N, V), row by row, and its mean; cross_entropy_one_pass.cu has both
// passes in one. A warp or a block takes a row. The forward reads it once, with an online maximum
// and sum; the backward reads and writes it once. Bound by memory.
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

// The mean of the row losses (n) over the rows whose target counts. One block, so that the order of
// the sum is fixed. It moves a few hundred KB at most and is bound by latency, so every thread has
// many loads in flight.
constexpr int kMeanThreads = 1024;
constexpr int kInFlight = 16;  // elements of each array that a thread waits for at a time

// Exact up to 2^24 targets; beyond, rounded as any sum in float.
struct Tally {
  float loss = 0.0f;   // sum of the row losses
  float count = 0.0f;  // targets that are not ignored
};

// Tally over the block, for every thread. Without losses (null) only the targets are counted.
__device__ Tally tally_rows(const float* row_loss, const int32_t* targets, int64_t n,
                            int32_t ignore_index) {
  float sum = 0.0f;
  int64_t count = 0;
  for (int64_t first = threadIdx.x; first < n; first += kInFlight * kMeanThreads) {
    float loss[kInFlight];
    int32_t target[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int64_t i = first + u * kMeanThreads;
      loss[u] = i < n && row_loss != nullptr ? row_loss[i] : 0.0f;
      target[u] = i < n ? targets[i] : ignore_index;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      sum += loss[u];
      count += target[u] != ignore_index;
    }
  }
  return {block_sum(sum), block_sum(static_cast<float>(count))};
}

__global__ void __launch_bounds__(kMeanThreads, 1)
    cross_entropy_mean_kernel(float* loss, float* inverse_count, const float* row_loss,
                              const int32_t* targets, int64_t n, int32_t ignore_index) {
  const Tally rows = tally_rows(row_loss, targets, n, ignore_index);
  if (threadIdx.x != 0) return;
  loss[0] = rows.count == 0.0f ? 0.0f : rows.loss / rows.count;
  inverse_count[0] = rows.count == 0.0f ? 0.0f : 1.0f / rows.count;
}

__global__ void __launch_bounds__(kMeanThreads, 1)
    cross_entropy_scale_kernel(float* scale, const int32_t* targets, int64_t n, float loss_scale,
                               int32_t ignore_index) {
  const float count = tally_rows(nullptr, targets, n, ignore_index).count;
  if (threadIdx.x == 0) scale[0] = count == 0.0f ? 0.0f : loss_scale / count;
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

template <class A>
void cross_entropy_mean(A* loss, A* inverse_count, const A* row_loss, const int32_t* targets,
                        int64_t n, int32_t ignore_index, Stream stream) {
  launch(cross_entropy_mean_kernel, dim3(1), dim3(kMeanThreads), 0, stream, loss, inverse_count,
         row_loss, targets, n, ignore_index);
}

template <class A>
void cross_entropy_scale(A* scale, const int32_t* targets, int64_t n, double loss_scale,
                         int32_t ignore_index, Stream stream) {
  launch(cross_entropy_scale_kernel, dim3(1), dim3(kMeanThreads), 0, stream, scale, targets, n,
         static_cast<float>(loss_scale), ignore_index);
}

template decltype(cross_entropy_mean<float>) cross_entropy_mean<float>;
template decltype(cross_entropy_scale<float>) cross_entropy_scale<float>;

}  // namespace quern::kernels::cuda
