// Cross-entropy of logits (N, V), row by row; the mean is in cross_entropy_mean.cu. A warp or a
// block takes a row: the forward reads it once, with an online maximum and sum; the backward reads
// and writes it once. Both in one pass also read and write it once: the row waits in shared memory
// for its logsumexp. Bound by memory; two exponentials an element are the next limit.
#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/cuda/row.cuh"

namespace quern::kernels::cuda {

namespace {

// Relative error 2^-22 and half an ulp of x log2(e); results below 2^-126 are 0.
__device__ __forceinline__ float fast_exp(float x) {
  constexpr float kLog2e = 1.4426950408889634f;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2e));
  return y;
}

// sum of exp(x - max) over what was seen so far (Milakov and Gimelshein, 2018). A NaN among the
// logits does not show in the maximum, but in the sum.
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

// Of a whole row, from its threads' parts. kBlockGroup stands for a block of any size.
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

// The second half of a row whose target counts: the gradient over the logits, and the loss, which
// whoever holds the target's logit writes.
struct RowGradient {
  float lse, factor;
  int64_t target;
  float* loss;

  template <int kWidth, class T>
  __device__ __forceinline__ void store(T* row, const float (&x)[kWidth], int64_t i) const {
    float p[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) p[e] = fast_exp(x[e] - lse);
    const int64_t at = target - i;
    if (at >= 0 && at < kWidth) {
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (e != at) continue;
        *loss = lse - x[e];
        p[e] -= 1.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) p[e] *= factor;
    store_vec(row + i, p);
  }
};

// Short rows, which the cache keeps between the two passes, and rows without 16-byte accesses.
template <class T, int kGroup>
__global__ void __launch_bounds__(kRowThreads)
    cross_entropy_forward_backward_kernel(float* row_loss, T* logits, const int32_t* targets,
                                          const float* scale, int64_t N, int64_t V,
                                          int32_t ignore_index, bool vectors) {
  const float factor = scale[0];
  for_each_row<kGroup>(N, [&](int64_t row) {
    T* const x = logits + row * V;
    const int32_t target = targets[row];
    const bool ignored = target == ignore_index;
    if (group_lane<kGroup>() == 0 && (ignored || target < 0 || target >= V)) {
      row_loss[row] = ignored ? 0.0f : NAN;
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
    const RowGradient gradient{logsumexp<kGroup>(running), factor, target, row_loss + row};
    for_each_in_row<kGroup, kVecSize<T>>(V, vectors, [&](auto width, int64_t i) {
      float values[width];
      load_vec(values, x + i);
      gradient.store(x, values, i);
    });
  });
}

constexpr int kHeldThreads = 512;
constexpr int64_t kHeldBytes = 112 << 10;  // two blocks share the 228 KiB of a Hopper SM

// Long rows. Shared memory holds the first `held` elements of a row between its two passes; what is
// beyond is read twice. Each thread reads what it copied itself, so the copies need no barrier. Two
// blocks an SM: one computes while the other's row is on its way.
template <class T>
__global__ void __launch_bounds__(kHeldThreads, 2)
    cross_entropy_forward_backward_held_kernel(float* row_loss, T* logits, const int32_t* targets,
                                               const float* scale, int64_t N, int64_t V,
                                               int64_t held, int32_t ignore_index) {
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
      row_loss[row] = ignored ? 0.0f : NAN;
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
    const RowGradient gradient{logsumexp<kBlockGroup>(running), factor, target, row_loss + row};
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

template <class T>
void cross_entropy_forward_backward(acc_t<T>* row_loss, T* logits, const int32_t* targets,
                                    const acc_t<T>* scale, int64_t N, int64_t V,
                                    int32_t ignore_index, Stream stream) {
  constexpr int64_t kWidth = kVecSize<T>;
  const bool vectors = V % kWidth == 0 && aligned16({logits});
  if (!vectors || V <= kWarpRow) {
    launch_rows(cross_entropy_forward_backward_kernel<T, kWarpSize>,
                cross_entropy_forward_backward_kernel<T, kBlockGroup>, N, V, stream, row_loss,
                logits, targets, scale, N, V, ignore_index, vectors);
    return;
  }
  constexpr int64_t kOtherShared = 1 << 10;  // the block's reductions
  const int64_t bytes =
      std::min<int64_t>(kHeldBytes, device_traits().shared_bytes_per_block - kOtherShared);
  const int64_t held = std::min<int64_t>(V, bytes / 16 * kWidth);
  launch(cross_entropy_forward_backward_held_kernel<T>, grid_stride_blocks(N, 1),
         dim3(kHeldThreads), static_cast<size_t>(held) * sizeof(T), stream, row_loss, logits,
         targets, scale, N, V, held, ignore_index);
}

#define QUERN_INSTANTIATE(T)                                                                      \
  template void cross_entropy_forward<T>(acc_t<T>*, acc_t<T>*, const T*, const int32_t*, int64_t, \
                                         int64_t, int32_t, Stream);                               \
  template void cross_entropy_backward<T>(T*, const T*, const acc_t<T>*, const int32_t*,          \
                                          const acc_t<T>*, const acc_t<T>*, int64_t, int64_t,     \
                                          int32_t, Stream);                                       \
  template void cross_entropy_forward_backward<T>(acc_t<T>*, T*, const int32_t*, const acc_t<T>*, \
                                                  int64_t, int64_t, int32_t, Stream);
QUERN_INSTANTIATE(float)
QUERN_INSTANTIATE(bfloat16)
#undef QUERN_INSTANTIATE

}  // namespace quern::kernels::cuda
