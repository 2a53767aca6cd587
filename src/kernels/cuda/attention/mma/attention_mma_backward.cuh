// The backward of the portable tensor-core attention: a block's arguments, its tiles in shared
// memory, and how they are filled.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma/attention_mma_dq.cuh"
#include "kernels/cuda/primitives/named_barrier.cuh"

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

// The addresses in shared memory of one tile: K; V; the stages of Q, dO and the statistics; two of
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
  static constexpr int kStages = mma_backward_stages(tile);
  static_assert(2 * kKeyBytes + kStages * kStageBytes +
                    (mma_backward_split(tile) > 1 ? 3 : 2) * kScoreBytes ==
                mma_backward_shared_bytes(tile));

  uint32_t keys, values, stages, scores;

  __device__ explicit BackwardShared(const void* shared)
      : keys(shared_address(shared)),
        values(keys + kKeyBytes),
        stages(values + kKeyBytes),
        scores(stages + kStages * kStageBytes) {}
  __device__ __forceinline__ uint32_t queries(int j) const {
    return stages + j % kStages * kStageBytes;
  }
  __device__ __forceinline__ uint32_t ds(int j) const { return scores + j % 2 * kScoreBytes; }
  __device__ __forceinline__ uint32_t p() const { return scores + 2 * kScoreBytes; }
};

// A warp's share of a block's tile: its first key, query (of the scores) and feature.
template <int kTile>
struct BackwardWarp {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr int kSplit = mma_backward_split(tile);
  static constexpr int kKeys = mma_backward_warp_keys(tile);
  static constexpr int kQueries = tile.columns / kSplit;
  static constexpr int kFeatures = mma_backward_features(tile) / kSplit;
  static constexpr int kStep = mma_backward_step(tile);  // queries whose scores it holds at a time
  static_assert(kSplit == 1 || (kSplit == 2 && kStep == kQueries));

  int key = warp_index() / kSplit * kKeys;
  int query = warp_index() % kSplit * kQueries;
  int feature = warp_index() % kSplit * kFeatures;

  // The warps that have the same keys.
  using SameKeys = NamedBarriers<tile.rows / kKeys, kSplit * kWarpSize>;
  __device__ __forceinline__ void synchronize() const { SameKeys::sync(warp_index() / kSplit); }
};

// Starts to copy the block's tiles of K and V.
template <int kTile>
__device__ __forceinline__ void load_keys(const MmaBackward& x, const BackwardShared<kTile>& shared,
                                          const BackwardPlace& place) {
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
                                             const BackwardPlace& place, const QueryWalk& walk) {
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

}  // namespace quern::kernels::cuda
