// Tile sizes of the portable tensor-core attention, and the shared memory they take. Plain C++, so
// that a test without a GPU can check every size against a laptop GPU's limit.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/plan.h"

namespace quern::kernels::cuda {

inline constexpr int kMmaFeatures = 128;    // of dK and dV that one block can hold in registers
inline constexpr int kMmaQueryWidth = 64;   // up to it the forward keeps Q in registers
inline constexpr int kMmaWaveBlocks = 256;  // blocks that run together, about
inline constexpr int kMmaGroupQueries = 1 << 17;  // of the heads whose backwards run together

// As in attention_tiles.h, choose_tile takes the first row that is wide enough and fits the device,
// and the last of a width fits kPortableAttentionBytes. A warp's accumulators must stay below 255
// registers a thread. With 32 rows a warp, each fragment of the other matrix is used twice, which
// halves the traffic from shared memory: such tiles are faster where they fit.
//
// Forward: 4 warps own rows / 4 queries each; a thread sums rows (head_dim + columns) / 128 floats.
inline constexpr AttentionTile kMmaForwardTiles[] = {
    {16, 128, 64},  {32, 128, 64},  {64, 128, 64}, {80, 128, 64}, {96, 128, 64},
    {128, 128, 64}, {128, 128, 32}, {192, 64, 32}, {256, 64, 32},
};
// Backward: `rows` keys; a block walks over tiles of `columns` queries.
inline constexpr AttentionTile kMmaBackwardTiles[] = {
    {16, 128, 64}, {32, 128, 64},  {64, 128, 64}, {64, 128, 32},  {80, 128, 64},
    {80, 64, 64},  {96, 128, 64},  {96, 64, 32},  {128, 128, 64}, {128, 128, 32},
    {128, 64, 32}, {192, 128, 32}, {192, 64, 16}, {256, 64, 32},  {256, 32, 16},
};

constexpr int64_t mma_row_bytes(const AttentionTile& t) {
  return 2 * int64_t{t.head_dim} + kMmaPadBytes;
}
// Q; two stages of K and V.
constexpr int64_t mma_forward_shared_bytes(const AttentionTile& t) {
  return (t.rows + 2 * 2 * t.columns) * mma_row_bytes(t);
}
// The features of dK, dV and dQ that a block computes. head_dim / features blocks share a tile of
// keys; each of them computes all scores.
constexpr int mma_backward_features(const AttentionTile& t) {
  return t.head_dim <= kMmaFeatures ? t.head_dim : t.head_dim / 2;
}
// Warps that share 32 keys: 2 where a thread lacks registers for all features. Each computes the
// scores of its part of the queries, and dK and dV of its part of the features.
constexpr int mma_backward_split(const AttentionTile& t) {
  return t.head_dim > 64 && t.columns >= 32 ? 2 : 1;
}
constexpr int mma_backward_warp_keys(const AttentionTile& t) {
  return t.head_dim <= 64 || mma_backward_split(t) > 1 ? 32 : 16;
}
constexpr int mma_backward_threads(const AttentionTile& t) {
  return t.rows / mma_backward_warp_keys(t) * mma_backward_split(t) * 32;
}
// Queries whose scores a warp holds at a time.
constexpr int mma_backward_step(const AttentionTile& t) {
  const int queries = t.columns / mma_backward_split(t);
  return queries < 32 ? queries : 32;
}

// Tiles of queries in shared memory. With a third one the warps of a block need not begin a step
// together. It pays for the longest steps: those of blocks that occupy a multiprocessor alone.
constexpr int mma_backward_stages(const AttentionTile& t) {
  return mma_backward_threads(t) > kAttentionThreads && t.head_dim > 96 ? 3 : 2;
}

// K and V; the stages of Q, dO, and logsumexp and delta; two of dS, and P where warps share keys.
constexpr int64_t mma_backward_shared_bytes(const AttentionTile& t) {
  const int scores = mma_backward_split(t) > 1 ? 3 : 2;
  return 2 * t.rows * mma_row_bytes(t) +
         mma_backward_stages(t) * 2 * t.columns * (mma_row_bytes(t) + 4) +
         scores * t.rows * mma_row_bytes({t.columns, 0, 0});
}

// Blocks that a multiprocessor should hold.
constexpr int mma_backward_blocks(const AttentionTile& t) {
  return t.head_dim <= 16 ? 3 : mma_backward_threads(t) <= 128 ? 2 : 1;
}
// A warp's part of a tile of dQ: 32 queries where that divides the tile among the warps, else 16.
struct MmaDqPart {
  int queries, features;
};
constexpr MmaDqPart mma_dq_part(const AttentionTile& t) {
  const int warps = mma_backward_threads(t) / 32;
  const int features = mma_backward_features(t);
  for (const int queries : {32, 16}) {
    if (t.columns % queries != 0 || warps % (t.columns / queries) != 0) continue;
    const int across = warps / (t.columns / queries);
    if (features % (8 * across) == 0) return {queries, features / across};
  }
  return {};
}

// Blocks of the forward that a multiprocessor should hold: as many as registers for the
// accumulators allow.
constexpr int mma_forward_blocks(const AttentionTile& t) {
  return t.head_dim <= 32 ? 3 : 2;
}

static_assert(detail::portable(kMmaForwardTiles, mma_forward_shared_bytes));
static_assert(detail::portable(kMmaBackwardTiles, mma_backward_shared_bytes));

// Index of the backward's tile for s within shared_bytes.
inline int mma_backward_tile(int64_t shared_bytes, const AttentionShape& s) {
  return choose_tile(kMmaBackwardTiles, mma_backward_shared_bytes, s.D, shared_bytes);
}

// Offsets in bytes at which the parts of the scratch end, multiples of 16.
struct MmaScratchEnds {
  int64_t statistics, dq_sum, all;

  MmaScratchEnds(const AttentionShape& s, const AttentionTile& t) {
    const auto chunks = [](int64_t bytes) { return ceil_div(bytes, 16) * 16; };
    const int64_t parts = t.head_dim / mma_backward_features(t);
    statistics = chunks(8 * s.B * s.H * s.Tq);
    dq_sum = statistics + 4 * s.B * s.H * ceil_div(s.Tq, t.columns) * t.columns * t.head_dim;
    all = dq_sum + chunks(4 * (1 + s.B * s.Hk * parts * ceil_div(s.Tk, t.rows)));
  }
};

}  // namespace quern::kernels::cuda
