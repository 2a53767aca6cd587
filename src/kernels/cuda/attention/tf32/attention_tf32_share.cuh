// The shares of dQ in the backward of attention of FP32 tensors. Every block adds its own to dq in
// its turn (attention_turn.cuh). This file has the way of dS to the warps, a warp's part of a tile,
// and the addition.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/tf32/attention_tf32_backward.cuh"

namespace quern::kernels::cuda {

// Writes a warp's rows of dS^T, keys from `key` on, to rows of queries. The even ones of 8 keys
// come first: multiply_dq reads the rows of K in this order.
template <bool kSplit, int kTile, int kM, int kN>
__device__ __forceinline__ void store_transposed(const Tf32BackwardShared<kSplit, kTile>& shared,
                                                 int key,
                                                 const ScoresAsRows<kSplit, kM, kN>& rows) {
  using Shared = Tf32BackwardShared<kSplit, kTile>;
  constexpr int kBytes = Shared::ScoreRows::kBytes;
  const int place = lane_row() / 2 + lane_row() % 2 * 4;
  const uint32_t lane = shared.ds + lane_column() * kBytes + (key + place) * 4;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // register i: key half i % 2, query i / 2 of the lane's two
        const uint32_t target = lane + (8 * n + i / 2) * kBytes + (16 * m + i % 2 * 8) * 4;
        store_shared(target, rows.fragments[n][m].high[i]);
        if constexpr (kSplit) {
          store_shared(target + Shared::kScoreBytes, rows.fragments[n][m].low[i]);
        }
      }
    }
  }
}

// A warp's part of a tile of dQ: kM x kN fragments, of 32 queries where the tile has them.
// Fragments beyond the last feature are ignored.
template <bool kSplit, int kTile>
struct Tf32DqPart {
  static constexpr AttentionTile tile = tf32_key_tile<kSplit>(kTile);
  static constexpr int kWarps = tf32_backward_threads(tile) / kWarpSize;
  static constexpr int kM = tile.columns % 32 == 0 ? 2 : 1;
  static constexpr int kAcross = kWarps / (tile.columns / (16 * kM));  // warps side by side
  static constexpr int kN = (tile.head_dim / 8 + kAcross - 1) / kAcross;
  static constexpr int kWide = kN % 2 == 0 ? 2 : 1;  // as in kFeatureWidth
  static_assert(kAcross * (tile.columns / (16 * kM)) == kWarps);

  static __device__ __forceinline__ int first_query() { return warp_index() / kAcross * 16 * kM; }
  static __device__ __forceinline__ int first_feature() { return warp_index() % kAcross * 8 * kN; }
};

// sum = dS K for the warp's part.
template <bool kSplit, int kTile, int kM, int kN>
__device__ __forceinline__ void multiply_dq(float (&sum)[kM][kN][4],
                                            const Tf32BackwardShared<kSplit, kTile>& shared) {
  using Shared = Tf32BackwardShared<kSplit, kTile>;
  using Part = Tf32DqPart<kSplit, kTile>;
  using ScoreRows = typename Shared::ScoreRows;
  constexpr AttentionTile tile = Shared::tile;
  constexpr int kWide = Part::kWide;
  static_assert(tile.rows % (8 * kFlushSteps) == 0);
  clear(sum);
  uint32_t ds = shared.ds + Part::first_query() * ScoreRows::kBytes + ScoreRows::square_lane();
  uint32_t keys =
      shared.keys + Part::first_feature() * 4 + Shared::Rows::template feature_lane<kWide>();
#pragma unroll 1
  for (int key = 0; key < tile.rows; key += 8 * kFlushSteps) {
    ProductSum<kSplit> sums[kM][kN];
#pragma unroll
    for (int k = 0; k < kFlushSteps; ++k) {
      Operand<kSplit, 4> a[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        const uint32_t fragment = ds + m * 16 * ScoreRows::kBytes + (key + 8 * k) * 4;
        ldmatrix(a[m].high, fragment);
        if constexpr (kSplit) ldmatrix(a[m].low, fragment + Shared::kScoreBytes);
      }
#pragma unroll
      for (int f = 0; f < kN; f += kWide) {
        Operand<kSplit, 2> b[kWide];
        load_features<kWide, kCutOperand<tile.head_dim>>(
            b, keys + (key + 8 * k) * Shared::Rows::kBytes + f * 32, Shared::Rows::kBytes);
        multiply(sums, f, a, b);
      }
    }
    for_each_element<kM, kN>([&](int m, int n, int i) { sum[m][n][i] += sums[m][n].value(i); });
  }
}

// target[0..kCount) = x if `first`, else += x. Without `vectors` it has any alignment.
template <int kCount>
__device__ __forceinline__ void add_features(float* target, const float (&x)[kCount], bool first,
                                             bool vectors) {
  if (first) {
    if (vectors) return store_vec(target, x);
#pragma unroll
    for (int i = 0; i < kCount; ++i) target[i] = x[i];
    return;
  }
  if constexpr (kCount == 4) {
    if (vectors) return add_global_16(target, x);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) atomicAdd(target + i, x[i]);
}

// dq[row, :] (+)= sum for the warp's part; dq points at the tile's first row, of `rows` that exist.
template <class Part>
__device__ __forceinline__ void write_dq(float* dq, int64_t stride, int rows, int D,
                                         const float (&sum)[Part::kM][Part::kN][4], bool first,
                                         bool vectors) {
  constexpr int kWide = Part::kWide;
#pragma unroll
  for (int r = 0; r < 2 * Part::kM; ++r) {
    const int row = Part::first_query() + 8 * r + lane_row();
    if (row >= rows) continue;
#pragma unroll
    for (int f = 0; f < Part::kN; f += kWide) {
      const int d = Part::first_feature() + 8 * f + lane_column() * kWide;
      if (d >= D) continue;  // D is a multiple of 8, and d of 2 kWide
      float part[2 * kWide];
#pragma unroll
      for (int e = 0; e < 2 * kWide; ++e) {
        part[e] = sum[r / 2][f + e % kWide][r % 2 * 2 + e / kWide];
      }
      add_features(dq + row * stride + d, part, first, vectors);
    }
  }
}

}  // namespace quern::kernels::cuda
