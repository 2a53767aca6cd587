// What a block of the portable tensor-core attention's backward is built from: its arguments, its
// tiles in shared memory, and the step from scores to P and dS.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_mma_dq.cuh"

namespace quern::kernels::cuda {

struct MmaBackward {
  bfloat16 *dq, *dk, *dv;
  const bfloat16 *d_o, *o;
  const float* lse;
  const bfloat16 *q, *k, *v;
  AttentionShape s;
  MmaBackwardScratch scratch;
  bool vectors;  // every row allows 16-byte accesses
};

// Hands out places in the order in which blocks start.
__device__ __forceinline__ unsigned take_ticket(uint32_t* ticket) {
  __shared__ unsigned mine;
  if (threadIdx.x == 0) mine = atomicAdd(ticket, 1u);
  __syncthreads();
  return mine;
}

// The addresses in shared memory of one tile: K; V; two stages of Q, dO and the statistics; two of
// dS^T; P^T, where warps share keys.
template <int kTile>
struct BackwardShared {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kFeatures = mma_backward_features(tile);
  using Rows = SharedRows<tile.head_dim>;
  using ScoreRows = SharedRows<tile.columns>;
  static constexpr int kKeyBytes = tile.rows * Rows::kBytes;
  static constexpr int kQueryBytes = tile.columns * Rows::kBytes;
  static constexpr int kStageBytes = 2 * kQueryBytes + tile.columns * 8;
  static constexpr int kScoreBytes = tile.rows * ScoreRows::kBytes;
  static_assert(2 * (kKeyBytes + kStageBytes + kScoreBytes) +
                    (mma_backward_split(tile) > 1 ? kScoreBytes : 0) ==
                mma_backward_shared_bytes(tile));

  uint32_t keys, values, stages, scores;

  __device__ explicit BackwardShared(const void* shared)
      : keys(shared_address(shared)),
        values(keys + kKeyBytes),
        stages(values + kKeyBytes),
        scores(stages + 2 * kStageBytes) {}
  __device__ __forceinline__ uint32_t queries(int j) const { return stages + j % 2 * kStageBytes; }
  __device__ __forceinline__ uint32_t ds(int j) const { return scores + j % 2 * kScoreBytes; }
  __device__ __forceinline__ uint32_t p() const { return scores + 2 * kScoreBytes; }
};

// Which keys, scores and features of a block's tile a warp has: from the first key, query and
// feature on.
template <int kTile>
struct BackwardWarp {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kSplit = mma_backward_split(tile);
  static constexpr int kKeys = mma_backward_warp_keys(tile);
  static constexpr int kQueries = tile.columns / kSplit;
  static constexpr int kFeatures = mma_backward_features(tile) / kSplit;
  static_assert(kSplit == 1 || (kSplit == 2 && mma_backward_step(tile) == kQueries));

  int key = warp_index() / kSplit * kKeys;
  int query = warp_index() % kSplit * kQueries;
  int feature = warp_index() % kSplit * kFeatures;

  // Waits for the other warp that has these keys.
  __device__ __forceinline__ void synchronize() const {
    cuda::synchronize(1 + warp_index() / kSplit, kSplit * kWarpSize);
  }
};

// Starts to copy the block's tiles of K and V.
template <int kTile>
__device__ __forceinline__ void load_keys(const MmaBackward& x, const BackwardShared<kTile>& shared,
                                          const BackwardPlace<kTile>& place) {
  constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  constexpr int kThreads = mma_backward_threads(tile);
  const AttentionShape& s = x.s;
  const int rows = static_cast<int>(s.Tk) - place.k0, D = static_cast<int>(s.D);
  load_rows<tile.rows, tile.head_dim, kThreads>(
      shared.keys, at(x.k, s.k_strides, place.b, place.k0, place.kv_head), s.k_strides[1], rows, D,
      x.vectors);
  load_rows<tile.rows, tile.head_dim, kThreads>(
      shared.values, at(x.v, s.v_strides, place.b, place.k0, place.kv_head), s.v_strides[1], rows,
      D, x.vectors);
}

// Starts to copy a tile of Q, dO, logsumexp and delta to `stage`.
template <int kTile>
__device__ __forceinline__ void load_queries(const MmaBackward& x, uint32_t stage,
                                             const BackwardPlace<kTile>& place,
                                             const QueryWalk& walk) {
  using Shared = BackwardShared<kTile>;
  constexpr AttentionTile tile = Shared::tile;
  constexpr int kThreads = mma_backward_threads(tile);
  const AttentionShape& s = x.s;
  const int h = place.first_head + walk.head, q0 = walk.tile * tile.columns;
  const int rows = static_cast<int>(s.Tq) - q0, D = static_cast<int>(s.D);
  load_rows<tile.columns, tile.head_dim, kThreads>(stage, at(x.q, s.q_strides, place.b, q0, h),
                                                   s.q_strides[1], rows, D, x.vectors);
  load_rows<tile.columns, tile.head_dim, kThreads>(stage + Shared::kQueryBytes,
                                                   at(x.d_o, s.do_strides, place.b, q0, h),
                                                   s.do_strides[1], rows, D, x.vectors);
  static_assert(tile.columns <= kThreads);
  const int row = reread_thread();
  if (row >= tile.columns) return;
  const int64_t first = (static_cast<int64_t>(place.b) * s.H + h) * s.Tq + q0;
  copy_async<8>(stage + 2 * Shared::kQueryBytes + row * 8,
                x.scratch.statistics + first + (row < rows ? row : 0), row < rows);
}

// body(element, logsumexp, delta) for each of a warp's scores. `statistics`: address of those of
// the first column.
template <int kM, int kN, class Body>
__device__ __forceinline__ void for_each_score(uint32_t statistics, Body body) {
  statistics += lane_column() * 8;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float4 columns = load_shared_float4(statistics + n * 64);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        body(m, n, i, i % 2 == 0 ? columns.x : columns.z, i % 2 == 0 ? columns.y : columns.w);
      }
    }
  }
}

// S^T -> P^T
template <int kM, int kN>
__device__ __forceinline__ void exponentiate(float (&p)[kM][kN][4], float scale2,
                                             uint32_t statistics) {
  for_each_score<kM, kN>(statistics, [&](int m, int n, int i, float lse2, float) {
    p[m][n][i] = exp2_approximate(fmaf(p[m][n][i], scale2, -lse2));
  });
}
// dP^T -> dS^T
template <int kM, int kN>
__device__ __forceinline__ void differentiate(float (&ds)[kM][kN][4], const float (&p)[kM][kN][4],
                                              uint32_t statistics) {
  for_each_score<kM, kN>(statistics, [&](int m, int n, int i, float, float delta) {
    ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - delta);
  });
}

// Writes a warp's rows of P^T or dS^T to `tile`, the address of their first column.
template <int kColumns, int kM, int kN>
__device__ __forceinline__ void store_scores(uint32_t tile, const float (&scores)[kM][kN][4]) {
  constexpr int kBytes = SharedRows<kColumns>::kBytes;
  tile += lane_row() * kBytes + lane_column() * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = scores[m][n] + 2 * half;
        store_shared(tile + (16 * m + 8 * half) * kBytes + n * 16, pack_bf16(pair[0], pair[1]));
      }
    }
  }
}

// dx = factor sum, for the warp's keys and features of dK or dV. V's rows serve as its way out.
template <int kTile, int kM, int kFragments>
__device__ __forceinline__ void store_gradient(bfloat16* dx, const int64_t (&strides)[3],
                                               const MmaBackward& x,
                                               const BackwardShared<kTile>& shared,
                                               const BackwardPlace<kTile>& place,
                                               const float (&sum)[kM][kFragments][4],
                                               float factor) {
  using Shared = BackwardShared<kTile>;
  const BackwardWarp<kTile> warp;
  float factors[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = factor;
  const int key = place.k0 + warp.key;
  store_rows<Shared::tile.head_dim, 8 * kFragments>(
      at(dx, strides, place.b, key, place.kv_head), strides[1], static_cast<int>(x.s.Tk) - key,
      place.part * Shared::kFeatures + warp.feature, static_cast<int>(x.s.D), sum, factors,
      shared.values + warp.key * Shared::Rows::kBytes + warp.feature * 2, x.vectors);
}

}  // namespace quern::kernels::cuda
