// The backward of attention of FP32 tensors: a block's tiles in shared memory, and the walk over
// its scores with their statistics.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_backward.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.cuh"

namespace quern::kernels::cuda {

using Tf32Backward = TensorBackward<float>;

template <bool kSplit>
constexpr AttentionTile tf32_key_tile(int index) {
  return kSplit ? kSplitKeyTiles[index] : kTf32BackwardTiles[index];
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
  // Offset in a stage of the statistics of query `row`.
  static __device__ __forceinline__ uint32_t statistics_of(int row) {
    return row * Rows::kBytes + Rows::kPadding;
  }
};

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

}  // namespace quern::kernels::cuda
