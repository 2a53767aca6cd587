// The end of a step: gradient norm and clip factor, AdamW over the arena in one launch, the step
// counter. All scalars are read from the device's StepState, so a captured step stays valid. Bound
// by memory: the norm reads 4 bytes a parameter, AdamW moves 28, 8 less with BF16 moments, whether
// the weights lie in FP32 or in two parts.
#include "kernels/optimizer.h"

#include <type_traits>

#include "kernels/common/stochastic_rounding.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/weights.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256, kFinishThreads = 1024;
constexpr int64_t kFoldedPartials = 4096;
constexpr int64_t kAdamWChunk = 4096;  // elements a block takes at a time

// A warp takes a chunk at a time, with all its loads under way together.
__global__ void __launch_bounds__(kThreads)
    sum_squares_kernel(float* partial, const float* grad, int64_t n, bool aligned) {
  constexpr int kVectors = kNormChunk / (4 * kWarpSize);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / kWarpSize);
  const int64_t first = int64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  for (int64_t chunk = first; chunk * kNormChunk < n; chunk += warps) {
    const float* const x = grad + chunk * kNormChunk;
    const int64_t count = min(kNormChunk, n - chunk * kNormChunk);
    float sum = 0.0f;
    if (aligned && count == kNormChunk) {
      float value[kVectors][4];
#pragma unroll
      for (int j = 0; j < kVectors; ++j) load_vec(value[j], x + 4 * (j * kWarpSize + lane));
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum = fmaf(value[j][e], value[j][e], sum);
      }
    } else {
      for (int64_t i = lane; i < count; i += kWarpSize) sum = fmaf(x[i], x[i], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[chunk] = sum;
  }
}

// The sum of partial[0], partial[step], ... below `count`, for every thread of the block.
__device__ float sum_partials(const float* partial, int64_t count, int64_t step) {
  constexpr int kAtOnce = kFoldedPartials / kFinishThreads;  // loads of a thread under way
  float sums[kAtOnce] = {};
  for (int64_t i = threadIdx.x; i * step < count; i += kAtOnce * kFinishThreads) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t at = (i + j * kFinishThreads) * step;
      if (at < count) sums[j] += partial[at];
    }
  }
#pragma unroll
  for (int width = kAtOnce / 2; width > 0; width /= 2) {
#pragma unroll
    for (int j = 0; j < width; ++j) sums[j] += sums[j + width];
  }
  return block_sum(sums[0]);
}

// Each block leaves the sum of its kFoldedPartials in the place of their first: one multiprocessor
// takes 80 us for the 4 MB of half a billion parameters.
__global__ void __launch_bounds__(kFinishThreads)
    fold_partials_kernel(float* partial, int64_t count) {
  const int64_t first = blockIdx.x * kFoldedPartials;
  const float sum = sum_partials(partial + first, min(kFoldedPartials, count - first), 1);
  if (threadIdx.x == 0) partial[first] = sum;
}

// One block.
__global__ void __launch_bounds__(kFinishThreads)
    finish_norm_kernel(StepState* state, const float* partial, int64_t count, int64_t step,
                       float grad_scale, float max_norm, const float* loss) {
  const float sum = sum_partials(partial, count, step);
  if (threadIdx.x != 0) return;
  const float norm = sqrtf(sum) * grad_scale;
  state->norm = norm;
  state->clip = max_norm > 0.0f ? grad_scale * fminf(1.0f, max_norm / (norm + 1e-6f)) : grad_scale;
  const bool halted = state->halt != 0 && state->skipped > state->skipped_before;
  const bool finite = isfinite(norm) && (loss == nullptr || isfinite(*loss));
  state->finite = finite && !halted ? 1 : 0;
}

template <class Moment>
struct AdamWArrays {
  WeightArrays weights;
  Moment* m;
  Moment* v;
  const float* grad;
};

struct AdamWFactors {
  float clip, lr, decay;
  float correction1, correction2;  // 1 - beta^t
  int64_t shift, grad_shift, arena_shift;
  int64_t t;
};

// Elements from `place` in the arena on; four of them begin a block of random words.
template <int kWidth>
__device__ __forceinline__ void round_at_random(float (&m)[kWidth], float (&v)[kWidth],
                                                uint64_t seed, int64_t t, int64_t place) {
  static_assert(kWidth == 1 || kWidth == kMomentsABlock);
  const PhiloxBlock words = rounding_words(seed, t, place / kMomentsABlock);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    const uint32_t random = words.word[kWidth == 1 ? place % kMomentsABlock : e];
    m[e] = kernels::round_at_random(m[e], random);
    v[e] = kernels::round_at_random(v[e], random >> 16);
  }
}

// Multiply-adds are fused explicitly: if the compiler chose, vectors and single elements, or
// weights in FP32 and in parts, might differ in the last bit, and so would ranks.
template <bool kSplit, int kWidth, class Moment>
__device__ __forceinline__ void adamw_update(const AdamWArrays<Moment>& a, int64_t i,
                                             const AdamWHyper& hyper, const AdamWFactors& f) {
  float p[kWidth], m[kWidth], v[kWidth], g[kWidth];
  load_weights<kSplit>(p, a.weights, i);
  load_vec(m, a.m + i + f.shift);
  load_vec(v, a.v + i + f.shift);
  load_vec(g, a.grad + i + f.grad_shift);
#pragma unroll
  for (int e = 0; e < kWidth; ++e) {
    g[e] = __fmul_rn(g[e], f.clip);
    m[e] = fmaf(hyper.beta1, m[e], __fmul_rn(1.0f - hyper.beta1, g[e]));
    v[e] = fmaf(hyper.beta2, v[e], __fmul_rn(__fmul_rn(1.0f - hyper.beta2, g[e]), g[e]));
    const float root = __fadd_rn(sqrtf(v[e] / f.correction2), hyper.eps);
    p[e] = fmaf(-f.lr, fmaf(f.decay, p[e], m[e] / f.correction1 / root), p[e]);
  }
  if constexpr (std::is_same_v<Moment, bfloat16>) {
    round_at_random(m, v, hyper.seed, f.t, i + f.arena_shift);
  }
  store_weights<kSplit>(a.weights, i, p);
  store_vec(a.m + i + f.shift, m);
  store_vec(a.v + i + f.shift, v);
}

// Index of the first range that ends after `position`. Ranges are sorted and do not overlap.
__device__ int64_t first_range_after(const AdamWRange* ranges, int64_t count, int64_t position) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (ranges[middle].begin + ranges[middle].count > position) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// A block takes chunks of the arena; parts of a chunk that no range covers are left alone.
template <bool kSplit, class Moment>
__global__ void __launch_bounds__(kThreads, 5)
    adamw_kernel(const __grid_constant__ AdamWArrays<Moment> arrays, const AdamWRange* ranges,
                 int64_t range_count, const __grid_constant__ AdamWHyper hyper,
                 const StepState* state, bool aligned) {
  if (state->finite == 0) return;
  __shared__ float correction[2];
  if (threadIdx.x == 0) {  // in double: 1 - beta^t loses digits while beta^t is near 1
    const double t = static_cast<double>(state->step + 1);
    correction[0] = static_cast<float>(1.0 - pow(static_cast<double>(hyper.beta1), t));
    correction[1] = static_cast<float>(1.0 - pow(static_cast<double>(hyper.beta2), t));
  }
  __syncthreads();
  const AdamWRange last = ranges[range_count - 1];
  const int64_t arena_end = last.begin + last.count;
  for (int64_t begin = blockIdx.x * kAdamWChunk; begin < arena_end;
       begin += gridDim.x * kAdamWChunk) {
    const int64_t end = begin + kAdamWChunk;
    for (int64_t r = first_range_after(ranges, range_count, begin); r < range_count; ++r) {
      const AdamWRange range = ranges[r];
      if (range.begin >= end) break;
      const int64_t from = range.begin > begin ? range.begin : begin;
      const int64_t range_end = range.begin + range.count;
      const int64_t to = range_end < end ? range_end : end;
      const AdamWFactors factors{
          state->clip, state->lr * range.lr_scale, range.decay,       correction[0],  correction[1],
          range.shift, range.grad_shift,           range.arena_shift, state->step + 1};
      const bool whole = aligned && from % 4 == 0 && range.shift % 4 == 0 &&
                         range.grad_shift % 4 == 0 && range.arena_shift % 4 == 0;
      const int64_t vectors = whole ? (to - from) / 4 : 0;
      for (int64_t k = threadIdx.x; k < vectors; k += kThreads) {
        adamw_update<kSplit, 4>(arrays, from + 4 * k, hyper, factors);
      }
      for (int64_t i = from + 4 * vectors + threadIdx.x; i < to; i += kThreads) {
        adamw_update<kSplit, 1>(arrays, i, hyper, factors);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    round_moments_kernel(bfloat16* m, bfloat16* v, const float* exact_m, const float* exact_v,
                         int64_t n, int64_t place, uint64_t seed, int64_t t) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  float rounded_m[1] = {exact_m[i]}, rounded_v[1] = {exact_v[i]};
  round_at_random(rounded_m, rounded_v, seed, t, place + i);
  m[i] = bfloat16(rounded_m[0]);
  v[i] = bfloat16(rounded_v[0]);
}

__global__ void finish_step_kernel(StepState* state) {
  if (state->finite != 0) {
    ++state->step;
  } else {
    ++state->skipped;
  }
}

__global__ void store_learning_rate_kernel(StepState* state, float lr) {
  state->lr = lr;
}

// One block a range: this runs once, when a step has failed.
__global__ void __launch_bounds__(kThreads)
    count_nonfinite_kernel(int64_t* counts, const float* data, const AdamWRange* ranges) {
  __shared__ unsigned long long total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const AdamWRange range = ranges[blockIdx.x];
  unsigned long long count = 0;
  for (int64_t i = threadIdx.x; i < range.count; i += kThreads) {
    if (!isfinite(data[range.begin + i])) ++count;
  }
  atomicAdd(&total, count);
  __syncthreads();
  if (threadIdx.x == 0) counts[blockIdx.x] = static_cast<int64_t>(total);
}

}  // namespace

void store_learning_rate(StepState* state, float lr, Stream stream) {
  launch(store_learning_rate_kernel, dim3(1), dim3(1), 0, stream, state, lr);
}

void sum_squares(void* partial, const float* grad, int64_t n, Stream stream) {
  constexpr int64_t kElementsABlock = kNormChunk * (kThreads / kWarpSize);
  launch(sum_squares_kernel, grid_stride_blocks(n, kElementsABlock), dim3(kThreads), 0, stream,
         static_cast<float*>(partial), grad, n, aligned16({grad}));
}

void finish_norm(StepState* state, void* partial, int64_t count, float grad_scale, float max_norm,
                 const float* loss, Stream stream) {
  float* const partials = static_cast<float*>(partial);
  const bool folded = count > kFoldedPartials;
  if (folded) {
    launch(fold_partials_kernel, one_block_each(ceil_div(count, kFoldedPartials)),
           dim3(kFinishThreads), 0, stream, partials, count);
  }
  launch(finish_norm_kernel, dim3(1), dim3(kFinishThreads), 0, stream, state, partials, count,
         folded ? kFoldedPartials : int64_t{1}, grad_scale, max_norm, loss);
}

template <class Moment>
void adamw(const WeightArrays& weights, Moment* m, Moment* v, const float* grad,
           const AdamWRange* ranges, int64_t range_count, int64_t total, const AdamWHyper& hyper,
           const StepState* state, Stream stream) {
  if (range_count == 0) return;
  const AdamWArrays<Moment> arrays{weights, m, v, grad};
  const bool aligned = aligned16(weights) && aligned16({m, v, grad});
  with_split(weights, [&](auto is_split) {
    launch(adamw_kernel<is_split, Moment>, grid_stride_blocks(total, kAdamWChunk), dim3(kThreads),
           0, stream, arrays, ranges, range_count, hyper, state, aligned);
  });
}
template void adamw(const WeightArrays&, float*, float*, const float*, const AdamWRange*, int64_t,
                    int64_t, const AdamWHyper&, const StepState*, Stream);
template void adamw(const WeightArrays&, bfloat16*, bfloat16*, const float*, const AdamWRange*,
                    int64_t, int64_t, const AdamWHyper&, const StepState*, Stream);

void round_moments(bfloat16* m, bfloat16* v, const float* exact_m, const float* exact_v, int64_t n,
                   int64_t place, uint64_t seed, int64_t t, Stream stream) {
  launch(round_moments_kernel, one_block_each(ceil_div(n, kThreads)), dim3(kThreads), 0, stream, m,
         v, exact_m, exact_v, n, place, seed, t);
}

void finish_step(StepState* state, Stream stream) {
  launch(finish_step_kernel, dim3(1), dim3(1), 0, stream, state);
}

void count_nonfinite(int64_t* counts, const float* data, const AdamWRange* ranges,
                     int64_t range_count, Stream stream) {
  launch(count_nonfinite_kernel, one_block_each(range_count), dim3(kThreads), 0, stream, counts,
         data, ranges);
}

}  // namespace quern::kernels::cuda
