// Cross-entropy of logits (N, V), row by row, its mean, and both passes in one. A warp or a block
// takes a row. The forward reads it once, with an online maximum and sum; the backward reads and
// writes it once. The one-pass kernels overwrite the logits with the gradient: a row stays in the
// shared memory of a block or a cluster until its logsumexp is known, so that it is read and
// written once. Bound by memory; for the one pass, two exponentials an element are the next limit.
#include "kernels/cross_entropy.h"

#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/cuda/primitives/instructions.cuh"
#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/cuda/primitives/row.cuh"

namespace quern::kernels::cuda {

namespace {

// Relative error 2^-22 and half an ulp of x log2(e); results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
  return fast_exp2(x * kLog2e);
}

// sum of exp(x - max) over the elements so far (Milakov and Gimelshein, 2018). A NaN among the
// logits shows in the sum, not in the maximum.
struct RunningSum {
  float max = -INFINITY;
  float sum = 0.0f;

  // The exponent's zero point: -inf - -inf would be NaN.
  static __device__ float base(float max) { return max == -INFINITY ? 0.0f : max; }

  template <int kWidth>
  __device__ __forceinline__ void add(const float (&x)[kWidth]) {
    float highest = max;
#pragma unroll
    for (int e = 0; e < kWidth; ++e) highest = fmaxf(highest, x[e]);
    if (highest > max) {
      sum *= fast_exp(max - highest);
      max = highest;
    }
    const float zero = base(max);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) sum += fast_exp(x[e] - zero);
  }
};

// logsumexp of a row from its threads' parts. kBlockGroup stands for a block of any size.
template <int kGroup>
__device__ __forceinline__ float logsumexp(const RunningSum& part) {
  const float max = group_max<kGroup>(part.max);
  const float share = part.sum * fast_exp(part.max - RunningSum::base(max));
  return max + logf(group_sum<kGroup>(share));
}

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

// No z-loss, as a type, so that its kernels have no code for one.
struct NoZLoss {
  static constexpr float* rows = nullptr;
  __device__ static constexpr float factor(float) { return 1.0f; }
};

// The losses of a row without a gradient: 0 where ignored, NaN for a bad target.
template <class Z>
__device__ __forceinline__ void report_row(float* row_loss, const Z& z, int64_t row, bool ignored) {
  row_loss[row] = ignored ? 0.0f : NAN;
  if (z.rows != nullptr) z.rows[row] = ignored ? 0.0f : NAN;
}

// The second half of a row whose target counts: writes the gradient over the logits. The holder of
// the target's logit also writes the losses.
template <class Z>
struct RowGradient {
  float lse, factor;
  int64_t target;
  float* loss;
  const Z& z;
  int64_t index;  // of the row

  template <int kWidth, class T>
  __device__ __forceinline__ void store(T* row, const float (&x)[kWidth], int64_t i) const {
    float p[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) p[e] = fast_exp(x[e] - lse) * z.factor(lse);
    const int64_t at = target - i;
    if (at >= 0 && at < kWidth) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (e != at) continue;
        *loss = lse - x[e];
        if (z.rows != nullptr) z.rows[index] = lse * lse;
        p[e] -= 1.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) p[e] *= factor;
    store_vec(row + i, p);
  }
};

// Short rows, which the cache keeps between the two passes, and rows without 16-byte accesses.
template <class T, int kGroup, class Z>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_forward_backward_kernel(float* row_loss, T* logits, const int32_t* targets,
                                          const float* scale, int64_t N, int64_t V,
                                          int32_t ignore_index, Z z, bool vectors) {
  const float factor = scale[0];
  for_each_row<kGroup>(N, [&](int64_t row) {
    T* const x = logits + row * V;
    const int32_t target = targets[row];
    const bool ignored = target == ignore_index;
    if (group_lane<kGroup>() == 0 && (ignored || target < 0 || target >= V)) {
      report_row(row_loss, z, row, ignored);
    }
    if (ignored) {
      for_each_in_row<kGroup, kVecSize<T>>(V, vectors, [&](auto width, int64_t i) {
        const float zero[width] = {};
        store_vec(x + i, zero);
      });
      return;
    }
    RunningSum running;
    for_each_in_row<kGroup, kVecSize<T>>(V, vectors, [&](auto width, int64_t i) {
      float values[width];
      load_vec(values, x + i);
      running.add(values);
    });
    const RowGradient<Z> gradient{
        logsumexp<kGroup>(running), factor, target, row_loss + row, z, row};
    for_each_in_row<kGroup, kVecSize<T>>(V, vectors, [&](auto width, int64_t i) {
      float values[width];
      load_vec(values, x + i);
      gradient.store(x, values, i);
    });
  });
}

constexpr int kHeldThreads = 512;
constexpr int64_t kHeldBytes = 112 << 10;  // two blocks share the 228 KiB of a Hopper SM

// Long rows. Shared memory holds the first `held` elements of a row between its two passes; the
// others are read twice. Each thread reads its own copies, so the copies need no barrier. Two
// blocks an SM: one computes while the other's row is loading.
template <class T, class Z>
__global__ void __launch_bounds__(kHeldThreads, 2)
    cross_entropy_forward_backward_held_kernel(float* row_loss, T* logits, const int32_t* targets,
                                               const float* scale, int64_t N, int64_t V,
                                               int64_t held, int32_t ignore_index, Z z) {
  constexpr int kWidth = kVecSize<T>, kStep = kHeldThreads * kWidth;
  extern __shared__ uint4 held_memory[];
  T* const held_row = reinterpret_cast<T*>(held_memory);
  const int64_t first = threadIdx.x * kWidth;
  const float factor = scale[0];
  for (int64_t row = blockIdx.x; row < N; row += gridDim.x) {
    T* const x = logits + row * V;
    const int32_t target = targets[row];
    const bool ignored = target == ignore_index;
    if (threadIdx.x == 0 && (ignored || target < 0 || target >= V)) {
      report_row(row_loss, z, row, ignored);
    }
    float values[kWidth] = {};
    if (ignored) {
      for (int64_t i = first; i < V; i += kStep) store_vec(x + i, values);
      continue;
    }
    for (int64_t i = first; i < held; i += kStep) {
      __pipeline_memcpy_async(held_row + i, x + i, kWidth * sizeof(T));
    }
    __pipeline_commit();
    RunningSum running;
    for (int64_t i = held + first; i < V; i += kStep) {
      load_vec(values, x + i);
      running.add(values);
    }
    __pipeline_wait_prior(0);
    for (int64_t i = first; i < held; i += kStep) {
      load_vec(values, held_row + i);
      running.add(values);
    }
    const RowGradient<Z> gradient{
        logsumexp<kBlockGroup>(running), factor, target, row_loss + row, z, row};
    for (int64_t i = held + first; i < V; i += kStep) {
      load_vec(values, x + i);
      gradient.store(x, values, i);
    }
    for (int64_t i = first; i < held; i += kStep) {
      load_vec(values, held_row + i);
      gradient.store(x, values, i);
    }
  }
}

constexpr int kCluster = 4;  // blocks that share a row

// Rows that one block cannot hold: each block of a cluster holds `part` elements, and the blocks
// exchange their parts' logsumexp.
template <class T, class Z>
__global__ void
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // others have no clusters
__cluster_dims__(kCluster)
#endif
    __launch_bounds__(kHeldThreads, 3)
        cross_entropy_forward_backward_cluster_kernel(float* row_loss, T* logits,
                                                      const int32_t* targets, const float* scale,
                                                      int64_t V, int64_t part, int32_t ignore_index,
                                                      Z z) {
#if __CUDA_ARCH__ >= 900
  constexpr int kWidth = kVecSize<T>, kStep = kHeldThreads * kWidth;
  extern __shared__ uint4 held_memory[];
  __shared__ float parts[kCluster];
  T* const held = reinterpret_cast<T*>(held_memory);
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int64_t row = blockIdx.x / kCluster;
  const int64_t begin = rank * part, end = begin + part < V ? begin + part : V;
  const int length = static_cast<int>(end - begin), first = static_cast<int>(threadIdx.x) * kWidth;
  T* const x = logits + row * V + begin;
  const int32_t target = targets[row];
  const bool ignored = target == ignore_index;
  if (rank == 0 && threadIdx.x == 0 && (ignored || target < 0 || target >= V)) {
    report_row(row_loss, z, row, ignored);
  }
  float values[kWidth] = {};
  if (ignored) {
    for (int i = first; i < length; i += kStep) store_vec(x + i, values);
    return;
  }
  cluster_arrive();
  for (int i = first; i < length; i += kStep) {
    __pipeline_memcpy_async(held + i, x + i, kWidth * sizeof(T));
  }
  __pipeline_commit();
  __pipeline_wait_prior(0);
  RunningSum running;
  for (int i = first; i < length; i += kStep) {
    load_vec(values, held + i);
    running.add(values);
  }
  const float block_lse = logsumexp<kBlockGroup>(running);
  cluster_wait();  // all blocks have started: their shared memory exists
  if (threadIdx.x < kCluster) store_in_cluster(parts + rank, threadIdx.x, block_lse);
  cluster_arrive();
  cluster_wait();
  RunningSum whole;
  whole.add(parts);
  const float lse = RunningSum::base(whole.max) + logf(whole.sum);
  const RowGradient<Z> gradient{lse, scale[0], target - begin, row_loss + row, z, row};
  for (int i = first; i < length; i += kStep) {
    load_vec(values, held + i);
    gradient.store(x, values, i);
  }
#endif
}

template <class T, class Z>
void launch_one_pass(float* row_loss, T* logits, const int32_t* targets, const float* scale,
                     int64_t N, int64_t V, int32_t ignore_index, Z z, Stream stream) {
  constexpr int64_t kWidth = kVecSize<T>;
  const bool vectors = V % kWidth == 0 && aligned16({logits});
  if (!vectors || V <= kWarpRow) {
    launch_rows(cross_entropy_forward_backward_kernel<T, kWarpSize, Z>,
                cross_entropy_forward_backward_kernel<T, kBlockGroup, Z>, N, V, stream, row_loss,
                logits, targets, scale, N, V, ignore_index, z, vectors);
    return;
  }
  constexpr int64_t kOtherShared = 1 << 10;  // the block's reductions
  const int64_t bytes =
      std::min<int64_t>(kHeldBytes, device_traits().shared_bytes_per_block - kOtherShared);
  const int64_t held = std::min<int64_t>(V, bytes / 16 * kWidth);
  const int64_t part = ceil_div(V / kWidth, kCluster) * kWidth;
  const auto cluster_kernel = cross_entropy_forward_backward_cluster_kernel<T, Z>;
  if (held < V && part <= held && has_hopper_code(cluster_kernel)) {
    launch(cluster_kernel, one_block_each(N * kCluster), dim3(kHeldThreads),
           static_cast<size_t>(part) * sizeof(T), stream, row_loss, logits, targets, scale, V, part,
           ignore_index, z);
    return;
  }
  launch(cross_entropy_forward_backward_held_kernel<T, Z>, grid_stride_blocks(N, 1),
         dim3(kHeldThreads), static_cast<size_t>(held) * sizeof(T), stream, row_loss, logits,
         targets, scale, N, V, held, ignore_index, z);
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

template <class T>
void cross_entropy_forward_backward(acc_t<T>* row_loss, T* logits, const int32_t* targets,
                                    const acc_t<T>* scale, int64_t N, int64_t V,
                                    int32_t ignore_index, ZLoss<acc_t<T>> z, Stream stream) {
  const auto with = [&](auto term) {
    launch_one_pass(row_loss, logits, targets, scale, N, V, ignore_index, term, stream);
  };
  if (z.rows == nullptr) return with(NoZLoss{});
  with(z);
}

template decltype(cross_entropy_forward_backward<float>) cross_entropy_forward_backward<float>;
template decltype(cross_entropy_forward_backward<bfloat16>)
    cross_entropy_forward_backward<bfloat16>;

}  // namespace quern::kernels::cuda
