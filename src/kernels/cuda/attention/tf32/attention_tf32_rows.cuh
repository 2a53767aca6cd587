// Tiles of FP32 rows in shared memory, for the tensor-core attention of FP32 tensors: how they come
// from global memory, and how results go back.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma/attention_mma_place.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.h"
#include "kernels/cuda/attention/tf32/attention_tf32_operand.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace quern::kernels::cuda {

// Rows of kD floats, kD a multiple of 16, and 16 bytes of padding each. A row is then an odd number
// of 16-byte chunks long. So the 8 rows of a matrix that ldmatrix reads lie in different banks, and
// so do the reads of multiply_add.
template <int kD>
struct FloatRows {
  static_assert(kD % 16 == 0);
  static constexpr int kBytes = kD * 4 + kTf32PadBytes;  // of a row
  static constexpr int kPadding = kD * 4;                // offset of the padding in a row

  // This lane's address for ldmatrix of 16 x 8 floats as A; a "row" of its 8 x 8 matrices of 16
  // bits is 4 floats, and a pair of 16 bits is one.
  static __device__ __forceinline__ uint32_t row_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 16 * kBytes + lane / 16 * 16;
  }
  // This lane's address for 16 rows as columns n of two B tiles, k along the row.
  static __device__ __forceinline__ uint32_t column_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return (lane / 16 * 8 + lane % 8) * kBytes + lane / 8 % 2 * 16;
  }
  // This lane's address for rows 2t and 2t + 1 as k of B tiles: kWide features from kWide g on.
  template <int kWide>
  static __device__ __forceinline__ uint32_t feature_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 4 * 2 * kBytes + lane / 4 * (4 * kWide);
  }
};
static_assert(FloatRows<64>::kBytes == tf32_row_bytes({64, 0, 0}));

// Starts to copy x[row, :] to kRows rows at `tile`, with zeros beyond `rows` rows and D features. x
// points at the tile's first row. A 16-byte chunk is inside or outside as a whole: D is a multiple
// of 8. Without `vectors` rows have any alignment, and floats are copied one by one.
template <int kRows, int kD, int kThreads = kAttentionThreads>
__device__ __forceinline__ void load_rows(uint32_t tile, const float* x, int64_t stride, int rows,
                                          int D, bool vectors) {
  constexpr int kChunks = kD / 4;
  constexpr int kTotal = kRows * kChunks;
  const int thread = reread_thread();
  if (vectors) {
    if constexpr (kThreads % kChunks == 0) {  // the same chunk of every kStep-th row
      constexpr int kStep = kThreads / kChunks;
      const int row = thread / kChunks, chunk = thread % kChunks;
      const int present = chunk * 4 < D ? rows - row : 0;
      tile += row * FloatRows<kD>::kBytes + chunk * 16;
      x += row * stride + chunk * 4;
#pragma unroll
      for (int step = 0; step < kRows; step += kStep, x += kStep * stride) {
        if (kRows % kStep != 0 && row + step >= kRows) break;
        copy_async<16>(tile + step * FloatRows<kD>::kBytes, x, step < present);
      }
    } else {
#pragma unroll
      for (int first = 0; first < kTotal; first += kThreads) {
        const int row = (first + thread) / kChunks, chunk = (first + thread) % kChunks;
        if (kTotal % kThreads != 0 && first + thread >= kTotal) break;
        copy_async<16>(tile + row * FloatRows<kD>::kBytes + chunk * 16,
                       x + row * stride + chunk * 4, row < rows && chunk * 4 < D);
      }
    }
    return;
  }
#pragma unroll 1
  for (int e = thread; e < kRows * kD; e += kThreads) {
    const int row = e / kD;
    const int d = e % kD;
    copy_async<4>(tile + row * FloatRows<kD>::kBytes + d * 4, x + row * stride + d,
                  row < rows && d < D);
  }
}

// The features that a lane holds of a product with kD of them. From each 8 kWide of them it loads
// kWide neighbours, one for each of kWide tiles of B. So feature 8 kWide f + 2 kWide t + kWide i +
// j is in tile kWide f + j, element i of the pair. The high part of a cut operand is the loaded
// register, and mma needs the two of a tile in adjacent registers. Neighbours loaded together are
// not: so these are loaded one at a time.
template <bool kSplit, int kD>
inline constexpr int kFeatureWidth = kSplit&& kCutOperand<kD> ? 1 : (kD % 32 == 0 ? 4 : 2);

// x[row, :] = values, for the warp's rows, of which `rows` exist, x pointing at the first; values
// from multiply_add.
template <bool kSplit, int kD, int kM>
__device__ __forceinline__ void store_rows(float* x, int64_t stride, int rows, int D,
                                           const float (&values)[kM][kD / 8][4], bool vectors) {
  constexpr int kWide = kFeatureWidth<kSplit, kD>;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int row = 8 * r + lane_row();
    if (row >= rows) continue;
#pragma unroll
    for (int f = 0; f < kD / 8; f += kWide) {
      const int d = 8 * f + lane_column() * kWide;
      if (d >= D) continue;  // D is a multiple of 8, and d of 2 kWide
      float part[2 * kWide];
#pragma unroll
      for (int e = 0; e < 2 * kWide; ++e) {
        part[e] = values[r / 2][f + e % kWide][r % 2 * 2 + e / kWide];
      }
      float* const target = x + row * stride + d;
      if (vectors) {
        store_vec(target, part);
      } else {
#pragma unroll
        for (int e = 0; e < 2 * kWide; ++e) target[e] = part[e];
      }
    }
  }
}

}  // namespace quern::kernels::cuda
