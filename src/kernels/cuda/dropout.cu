// Dropout of n elements in one pass. A block of Philox serves eight elements: 20 wide products and
// 20 three-way operations for every 64 bytes (FP32) or 32 bytes (BF16) that are read and written.
// So it is bound by memory.
#include "kernels/dropout.h"

#include "kernels/common/dropout_math.h"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/vec.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBlockElements = 8;  // of one block of Philox
constexpr int kUnroll = 2;         // Philox blocks whose elements a thread holds at once

// Loads elements first .. first + 7 of an array of n; those outside are 0 and not read.
template <class T>
__device__ __forceinline__ void load_inside(float (&v)[kBlockElements], const T* x, int64_t first,
                                            int64_t n) {
#pragma unroll
  for (int j = 0; j < kBlockElements; ++j) {
    const int64_t i = first + j;
    v[j] = i >= 0 && i < n ? to_float(x[i]) : 0.0f;
  }
}

template <class T>
__device__ __forceinline__ void store_inside(T* y, const float (&v)[kBlockElements], int64_t first,
                                             int64_t n) {
#pragma unroll
  for (int j = 0; j < kBlockElements; ++j) {
    const int64_t i = first + j;
    if (i >= 0 && i < n) y[i] = from_float<T>(v[j]);
  }
}

__device__ __forceinline__ void drop(float (&v)[kBlockElements], const PhiloxBlock& words,
                                     uint32_t threshold, float scale) {
#pragma unroll
  for (int j = 0; j < kBlockElements; ++j) {
    v[j] = dropout_keeps(words, j, threshold) ? v[j] * scale : 0.0f;
  }
}

// `whole`: n is a multiple of 8, so that every micro-batch begins with a block of Philox, and x and
// y allow 16-byte accesses. The loads then do not wait for the draw.
template <class T>
__global__ void dropout_kernel(T* y, const T* x, int64_t n, uint32_t threshold, float scale,
                               uint32_t site, const DropoutDraw* draw, bool whole) {
  constexpr int64_t E = kBlockElements;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const uint64_t seed = draw->seed, base = draw->number * static_cast<uint64_t>(n);
  if (whole) {
    int64_t block = thread;
    for (; block + (kUnroll - 1) * threads < n / E; block += kUnroll * threads) {
      float v[kUnroll][kBlockElements];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) load_vec(v[u], x + (block + u * threads) * E);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t at = block + u * threads;
        drop(v[u], dropout_words(seed, site, base / E + static_cast<uint64_t>(at)), threshold,
             scale);
        store_vec(y + at * E, v[u]);
      }
    }
    for (; block < n / E; block += threads) {
      float v[kBlockElements];
      load_vec(v, x + block * E);
      drop(v, dropout_words(seed, site, base / E + static_cast<uint64_t>(block)), threshold, scale);
      store_vec(y + block * E, v);
    }
    return;
  }
  const int64_t skipped = static_cast<int64_t>(base % E);  // of the first block, before x[0]
  for (int64_t block = thread; block < (skipped + n + E - 1) / E; block += threads) {
    float v[kBlockElements];
    load_inside(v, x, block * E - skipped, n);
    drop(v, dropout_words(seed, site, base / E + static_cast<uint64_t>(block)), threshold, scale);
    store_inside(y, v, block * E - skipped, n);
  }
}

__global__ void next_draw_kernel(DropoutDraw* out, DropoutDraw* state) {
  *out = *state;
  state->number += state->stride;
}

}  // namespace

void next_draw(DropoutDraw* out, DropoutDraw* state, Stream stream) {
  launch(next_draw_kernel, dim3(1), dim3(1), 0, stream, out, state);
}

template <class T>
void dropout(T* y, const T* x, int64_t n, double p, uint32_t site, const DropoutDraw* draw,
             Stream stream) {
  const bool whole = n % kBlockElements == 0 && aligned16({y, x});
  launch(dropout_kernel<T>, grid_stride_blocks(n, kThreads * kBlockElements * kUnroll), kThreads, 0,
         stream, y, x, n, dropout_threshold(p), static_cast<float>(dropout_scale(p)), site, draw,
         whole);
}

template decltype(dropout<float>) dropout<float>;
template decltype(dropout<bfloat16>) dropout<bfloat16>;

}  // namespace quern::kernels::cuda
