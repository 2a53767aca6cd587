// The steps of the backward attention between the products, on fragments as wgmma leaves them in
// registers (see fragment.cuh): S to P, dP to dS, and both to shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_softmax.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace quern::kernels::cuda {

// lse in units of log2. Rows that see no key, and those beyond the end, get +inf: their P is 0, and
// no inf - inf arises.
__device__ __forceinline__ float lse_log2(float lse) {
  return lse == -INFINITY ? INFINITY : lse * kLog2E;
}

// lse or delta of a thread's columns of a product, two neighbours of each 8 columns: read from
// shared memory at each use, or held in registers. They start at the thread's first column.
struct ColumnsInMemory {
  const float* first;

  __device__ __forceinline__ void get(float (&pair)[2], int j) const {
    load_vec(pair, first + 8 * j);
  }
};
template <int kPairs>
struct ColumnsInRegisters {
  float pairs[kPairs][2];

  __device__ __forceinline__ explicit ColumnsInRegisters(const float* first) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) load_vec(pairs[j], first + 8 * j);
  }
  __device__ __forceinline__ void get(float (&pair)[2], int j) const {
    pair[0] = pairs[j][0], pair[1] = pairs[j][1];
  }
};

// P^T = exp2(S^T - lse), rounded. With a mask, the queries from first[r] on, counted from the
// thread's first column, see row r. S^T itself is not changed: writing to registers of a product
// while another one runs would make the compiler serialize them.
template <bool kMasked, int kRegisters, class Columns>
__device__ __forceinline__ void transposed_probabilities(uint32_t (&p)[kRegisters / 8][4],
                                                         const float (&scores)[kRegisters],
                                                         float scale, const Columns& lse,
                                                         const int (&first)[2]) {
#pragma unroll
  for (int j = 0; j < kRegisters / 4; ++j) {
    float of_column[2];
    lse.get(of_column, j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float pair[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        pair[e] = fast_exp2(fmaf(scores[4 * j + 2 * r + e], scale, -of_column[e]));
        if (kMasked && 8 * j + e < first[r]) pair[e] = 0.0f;
      }
      p[j / 2][j % 2 * 2 + r] = pack_bf16(pair[0], pair[1]);
    }
  }
}

// dS = P (dP - delta) of two neighbours, rounded. P is the rounded one that dV uses.
__device__ __forceinline__ uint32_t score_gradients(uint32_t p, float dp_low, float dp_high,
                                                    float delta_low, float delta_high) {
  const float p_low = __uint_as_float(p << 16);
  const float p_high = __uint_as_float(p & 0xFFFF0000u);
  return pack_bf16(p_low * (dp_low - delta_low), p_high * (dp_high - delta_high));
}

// dS^T = P^T (dP^T - delta), rounded.
template <int kRegisters, class Columns>
__device__ __forceinline__ void transposed_score_gradients(uint32_t (&ds)[kRegisters / 8][4],
                                                           const uint32_t (&p)[kRegisters / 8][4],
                                                           const float (&dp)[kRegisters],
                                                           const Columns& delta) {
#pragma unroll
  for (int j = 0; j < kRegisters / 4; ++j) {
    float of_column[2];
    delta.get(of_column, j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      ds[j / 2][j % 2 * 2 + r] = score_gradients(p[j / 2][j % 2 * 2 + r], dp[4 * j + 2 * r],
                                                 dp[4 * j + 2 * r + 1], of_column[0], of_column[1]);
    }
  }
}

// One thread's part of dO . O, of 4 threads a row: every fourth group of 8 of the `columns`, at
// most kD.
template <int kD>
__device__ __forceinline__ float part_of_delta(const bfloat16* d_o, const bfloat16* o, int columns,
                                               bool o_vectors) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kD; i += 32) {
    const int column = i + static_cast<int>(threadIdx.x) % 4 * 8;
    if (column >= columns) continue;
    float x[8], y[8];
    load_vec(x, d_o + column);
    if (o_vectors) {
      load_vec(y, o + column);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) y[e] = to_float(o[column + e]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(x[e], y[e], sum);
  }
  return sum;
}

// Keeps the compiler from hoisting values that depend on x out of a loop into registers.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// The words of 64 keys by 64 queries of P^T or dS^T as rows of a tile in shared memory. A lane has
// the address of one row of the four 8 x 8 matrices that it moves at a time. Columns 16 i are at
// the address of the first 16 with i added, without carry, to bits 5 and 6 (SwizzledTile).
template <class Scores>
__device__ __forceinline__ uint32_t score_rows(const uint8_t* tile, int first_row) {
  static_assert(Scores::kSpan == 64 && Scores::kRowBytes == 128);
  const int thread = opaque(static_cast<int>(threadIdx.x)) % kWarpgroupSize;
  const int matrix = thread % kWarpSize / 8;  // rows 8 (matrix % 2), columns 8 (matrix / 2)
  const int row = first_row + thread / kWarpSize * 16 + matrix % 2 * 8 + thread % 8;
  return shared_address(tile) + Scores::offset(row, matrix / 2 * 8);
}
template <class Scores>
__device__ __forceinline__ void store_scores(uint8_t* tile, int first_row,
                                             const uint32_t (&words)[4][4]) {
  const uint32_t first = score_rows<Scores>(tile, first_row);
#pragma unroll
  for (int i = 0; i < 4; ++i) store_matrices(first ^ i * 32, words[i]);
}
template <class Scores>
__device__ __forceinline__ void load_scores(uint32_t (&words)[4][4], const uint8_t* tile) {
  const uint32_t first = score_rows<Scores>(tile, 0);
#pragma unroll
  for (int i = 0; i < 4; ++i) ldmatrix(words[i], first ^ i * 32);
}

}  // namespace quern::kernels::cuda
