// The backward of attention of FP32 tensors: a block's arguments, its tiles in shared memory, and
// the walk over its scores with their statistics.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_turn.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.cuh"

namespace quern::kernels::cuda {

struct Tf32Backward {
  float *dq, *dk, *dv;
  const float *d_o, *o, *lse;
  const float *q, *k, *v;
  AttentionShape s;
  float2* statistics = nullptr;  // (B, H, Tq): logsumexp in units of log2, delta
  uint32_t* ticket = nullptr;    // blocks started
  uint32_t* progress = nullptr;  // (B Hk, key tiles): steps done
  bool vectors = false;          // every row allows 16-byte accesses
};

template <bool kSplit>
constexpr AttentionTile tf32_key_tile(int index) {
  return kSplit ? kSplitKeyTiles[index] : kTf32KeyTiles[index];
}

// A block's tiles in shared memory: K; V; two stages of Q and dO, with a query's statistics in the
// padding of its row of Q. If dS goes into dQ, also dS with a row for each query: the high parts,
// then the low ones.
template <bool kSplit, int kTile>
struct Tf32BackwardShared {
  static constexpr AttentionTile tile = tf32_key_tile<kSplit>(kTile);
  static constexpr int kThreads = tf32_backward_threads(tile);
  using Rows = FloatRows<tile.head_dim>;
  using ScoreRows = FloatRows<tile.rows>;
  static constexpr int kKeyBytes = tile.rows * Rows::kBytes;
  static constexpr int kQueryBytes = tile.columns * Rows::kBytes;
  static constexpr int kScoreBytes = tile.columns * ScoreRows::kBytes;
  static constexpr bool kAddsDq = tf32_adds_dq(kSplit, tile.head_dim);
  static_assert(2 * kKeyBytes + 4 * kQueryBytes + (kAddsDq ? 2 * kScoreBytes : 0) ==
                (kSplit ? split_backward_shared_bytes(tile) : tf32_backward_shared_bytes(tile)));

  uint32_t keys, values, stages, ds;

  __device__ explicit Tf32BackwardShared(const void* shared)
      : keys(shared_address(shared)),
        values(keys + kKeyBytes),
        stages(values + kKeyBytes),
        ds(stages + 4 * kQueryBytes) {}
  __device__ __forceinline__ uint32_t queries(int j) const {
    return stages + j % 2 * (2 * kQueryBytes);
  }
};

// Starts to copy the block's tiles of K and V.
template <bool kSplit, int kTile>
__device__ __forceinline__ void load_keys(const Tf32Backward& x,
                                          const Tf32BackwardShared<kSplit, kTile>& shared,
                                          const BackwardPlace& place) {
  using Shared = Tf32BackwardShared<kSplit, kTile>;
  constexpr AttentionTile tile = Shared::tile;
  const AttentionShape& s = x.s;
  const int rows = static_cast<int>(s.Tk) - place.k0, D = static_cast<int>(s.D);
  load_rows<tile.rows, tile.head_dim, Shared::kThreads>(
      shared.keys, at(x.k, s.k_strides, place.b, place.k0, place.kv_head), s.k_strides[1], rows, D,
      x.vectors);
  load_rows<tile.rows, tile.head_dim, Shared::kThreads>(
      shared.values, at(x.v, s.v_strides, place.b, place.k0, place.kv_head), s.v_strides[1], rows,
      D, x.vectors);
}

// Starts to copy a tile of Q and dO with its statistics to `stage`.
template <bool kSplit, int kTile>
__device__ __forceinline__ void load_queries(const Tf32Backward& x, uint32_t stage,
                                             const BackwardPlace& place, const QueryWalk& walk) {
  using Shared = Tf32BackwardShared<kSplit, kTile>;
  constexpr AttentionTile tile = Shared::tile;
  const AttentionShape& s = x.s;
  const int h = place.first_head + walk.head, q0 = walk.tile * tile.columns;
  const int rows = static_cast<int>(s.Tq) - q0, D = static_cast<int>(s.D);
  load_rows<tile.columns, tile.head_dim, Shared::kThreads>(
      stage, at(x.q, s.q_strides, place.b, q0, h), s.q_strides[1], rows, D, x.vectors);
  load_rows<tile.columns, tile.head_dim, Shared::kThreads>(stage + Shared::kQueryBytes,
                                                           at(x.d_o, s.do_strides, place.b, q0, h),
                                                           s.do_strides[1], rows, D, x.vectors);
  static_assert(tile.columns <= Shared::kThreads);
  const int row = reread_thread();
  if (row >= tile.columns) return;
  const int64_t first = (static_cast<int64_t>(place.b) * s.H + h) * s.Tq + q0;
  copy_async<8>(stage + row * Shared::Rows::kBytes + Shared::Rows::kPadding,
                x.statistics + first + (row < rows ? row : 0), row < rows);
}

// Calls body(m, n, i, statistic) for each of a warp's scores. `statistic` points at column 0's.
template <int kD, int kM, int kN, class Body>
__device__ __forceinline__ void for_each_score(uint32_t statistic, Body body) {
  statistic += lane_column() * FloatRows<kD>::kBytes;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float x = load_shared_float(statistic + (8 * n + c) * FloatRows<kD>::kBytes);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = c; i < 4; i += 2) body(m, n, i, x);
      }
    }
  }
}

// Computes dq in a separate kernel, where the one for dk and dv does not add it.
void tf32_attention_dq(const Tf32Limits& limits, const Tf32Backward& x, Stream stream);

}  // namespace quern::kernels::cuda
