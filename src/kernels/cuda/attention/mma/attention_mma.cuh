// Building blocks of the portable tensor-core attention. Nouns: tiles of BF16 in shared memory
// (SharedRows), and scores in the accumulators of mma. Verbs: multiply_transposed, multiply_add,
// store_rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/attention/mma/attention_mma_place.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace quern::kernels::cuda {

template <int kD>
using SharedRows = PaddedRows<bfloat16, kD>;
static_assert(SharedRows<64>::kBytes == mma_row_bytes({64, 0, 0}));

// A's fragments of a warp's rows, read when needed. `address`: of the rows, plus square_lane().
template <int kD>
struct RowsInShared {
  uint32_t address;
  __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
    ldmatrix(a, address + m * 16 * SharedRows<kD>::kBytes + k * 32);
  }
};

// The same fragments, read once.
template <int kM, int kD>
struct RowsInRegisters {
  uint32_t fragments[kM][kD / 16][4];
  __device__ __forceinline__ void fill(const RowsInShared<kD>& rows) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int k = 0; k < kD / 16; ++k) rows.read(fragments[m][k], m, k);
    }
  }
  __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = fragments[m][k][i];
  }
};

// scores = rows columns^T; `columns`: address of a tile of 8 kN rows, plus column_lane().
template <int kD, int kM, int kN, class Rows>
__device__ __forceinline__ void multiply_transposed(float (&scores)[kM][kN][4], const Rows& rows,
                                                    uint32_t columns) {
  clear(scores);
  // More steps side by side would hold more fragments than the widest tiles have registers for.
  constexpr int kSteps = kM * kN > 8 && kD >= 128 ? 4 : kD / 16;
#pragma unroll kSteps
  for (int k = 0; k < kD / 16; ++k) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) rows.read(a[m], m, k);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b[4];
      ldmatrix(b, columns + n * 8 * SharedRows<kD>::kBytes + k * 32);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_bf16(scores[m][n], a[m], b[0], b[1]);
        mma_bf16(scores[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Scores as A, rounded: the accumulators of two 16 x 8 tiles are one fragment.
template <int kM, int kN>
struct ScoresAsRows {
  const float (&scores)[kM][kN][4];
  __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = scores[m][2 * k + i / 2];
      a[i] = pack_bf16(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
  }
};

// out += rows columns. `columns`: address of a tile of 16 kSteps rows of kD, at the first of kF
// features, plus square_lane().
template <int kD, int kF, int kSteps, int kM, class Rows>
__device__ __forceinline__ void multiply_add(float (&out)[kM][kF / 8][4], const Rows& rows,
                                             uint32_t columns) {
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) rows.read(a[m], m, k);
#pragma unroll
    for (int f = 0; f + 1 < kF / 8; f += 2) {
      uint32_t b[4];
      ldmatrix_transposed(b, columns + k * 16 * SharedRows<kD>::kBytes + f * 16);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_bf16(out[m][f], a[m], b[0], b[1]);
        mma_bf16(out[m][f + 1], a[m], b[2], b[3]);
      }
    }
    if constexpr (kF / 8 % 2 != 0) {
      constexpr int kLast = kF / 8 - 1;
      uint32_t b[2];
      ldmatrix_transposed(b, columns + k * 16 * SharedRows<kD>::kBytes + kLast * 16);
#pragma unroll
      for (int m = 0; m < kM; ++m) mma_bf16(out[m][kLast], a[m], b[0], b[1]);
    }
  }
}

// x[row, first_feature + f] = factor values for the warp's first `rows` rows; x points at the
// first. They pass through `tile`, the warp's own rows of kD >= kF features in shared memory, so
// that neighbouring lanes write a row.
template <int kD, int kF, int kM>
__device__ __forceinline__ void store_rows(bfloat16* x, int64_t stride, int rows, int first_feature,
                                           int D, const float (&values)[kM][kF / 8][4],
                                           const float (&factor)[kM][2], uint32_t tile,
                                           bool vectors) {
  __syncwarp();  // the readers of the tile's old contents are done
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + lane_row();
#pragma unroll
      for (int f = 0; f < kF / 8; ++f) {
        const float* pair = values[m][f] + 2 * half;
        store_shared(tile + row * SharedRows<kD>::kBytes + (8 * f + lane_column()) * 2,
                     pack_bf16(factor[m][half] * pair[0], factor[m][half] * pair[1]));
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kF / 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 4
  for (int e = lane; e < 16 * kM * kChunks; e += kWarpSize) {
    const int row = e / kChunks;
    const int f = e % kChunks * 8;
    if (row >= rows || first_feature + f >= D) continue;
    const uint4 chunk = load_shared_16(tile + row * SharedRows<kD>::kBytes + f * 2);
    bfloat16* const target = x + row * stride + first_feature + f;
    if (vectors) {
      *reinterpret_cast<uint4*>(target) = chunk;
    } else {
      const uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        target[i] = bfloat16::from_bits(static_cast<uint16_t>(pairs[i / 2] >> (i % 2 * 16)));
      }
    }
  }
}

}  // namespace quern::kernels::cuda
