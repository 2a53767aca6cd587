// Tile sizes of the portable tensor-core attention, and the shared memory they take. Plain C++, so
// that a test without a GPU can hold every size within a laptop GPU's limit.
#pragma once

#include <cstdint>
#include <iterator>

#include "base/half.h"
#include "kernels/cuda/attention_tiles.h"

namespace quern::kernels::cuda {

inline constexpr int kMmaRowsPerFragment = 16;  // of mma.m16n8k16
inline constexpr int kMmaWarps = kAttentionThreads / 32;
inline constexpr int kMmaPadBytes = 16;     // after a row in shared memory
inline constexpr int kMmaFeatures = 128;    // of dK and dV that one block can hold in registers
inline constexpr int kMmaQueryWidth = 64;   // up to it the forward keeps Q in registers
inline constexpr int kMmaWaveBlocks = 256;  // blocks that run together, about

// As in attention_tiles.h: the first row that is wide enough and fits the device is taken, and the
// last of a width fits kPortableAttentionBytes. Each of 4 warps owns rows / 4 rows, and what it
// accumulates has to stay below 255 registers a thread:
//   forward  rows (head_dim + columns) / 128
//   dK, dV   rows (2 features + 2 columns) / 128, features = head_dim up to 128, else half of it
//   dQ       rows (head_dim + 2 columns) / 128
// 32 rows a warp use each fragment of the other matrix twice, which halves the traffic from shared
// memory; where they fit, they win.
inline constexpr AttentionTile kMmaForwardTiles[] = {
    {16, 128, 64},  {32, 128, 64},  {64, 128, 64}, {80, 128, 64}, {96, 128, 64},
    {128, 128, 64}, {128, 128, 32}, {192, 64, 32}, {256, 64, 32},
};
inline constexpr AttentionTile kMmaKeyTiles[] = {
    {16, 128, 64}, {32, 128, 32}, {64, 128, 32}, {80, 64, 64},  {96, 64, 64},  {128, 64, 64},
    {128, 64, 32}, {192, 64, 32}, {192, 64, 16}, {256, 64, 32}, {256, 64, 16},
};
inline constexpr AttentionTile kMmaQueryTiles[] = {
    {16, 128, 64}, {32, 128, 64}, {64, 128, 64}, {80, 128, 32}, {96, 128, 32}, {128, 128, 32},
    {128, 64, 32}, {192, 64, 32}, {192, 64, 16}, {256, 64, 32}, {256, 64, 16},
};
inline constexpr int kMmaForwardTileCount = static_cast<int>(std::size(kMmaForwardTiles));
inline constexpr int kMmaKeyTileCount = static_cast<int>(std::size(kMmaKeyTiles));
inline constexpr int kMmaQueryTileCount = static_cast<int>(std::size(kMmaQueryTiles));

constexpr int64_t mma_row_bytes(const AttentionTile& t) {
  return 2 * int64_t{t.head_dim} + kMmaPadBytes;
}
// Q; two stages of K and V.
constexpr int64_t mma_forward_shared_bytes(const AttentionTile& t) {
  return (t.rows + 2 * 2 * t.columns) * mma_row_bytes(t);
}
// Two tiles of rows; two stages of two tiles of columns (Q and dO; K and V, or the other way
// round).
constexpr int64_t mma_backward_shared_bytes(const AttentionTile& t) {
  return (2 * t.rows + 2 * 2 * t.columns) * mma_row_bytes(t);
}

// The features of dK and dV that a block computes; ceil(head_dim / them) blocks share a key tile.
constexpr int mma_key_features(const AttentionTile& t) {
  return t.head_dim <= kMmaFeatures ? t.head_dim : t.head_dim / 2;
}

// Blocks of the forward that a multiprocessor should hold: as many as registers for the
// accumulators allow.
constexpr int mma_forward_blocks(const AttentionTile& t) {
  return t.head_dim <= 32 ? 3 : 2;
}

static_assert(detail::portable(kMmaForwardTiles, mma_forward_shared_bytes));
static_assert(detail::portable(kMmaKeyTiles, mma_backward_shared_bytes));
static_assert(detail::portable(kMmaQueryTiles, mma_backward_shared_bytes));

// mma_attention_forward and mma_attention_backward for a given limit of shared memory a block. They
// pass their device's; a test passes a smaller one, to run a laptop's tiles.
void mma_attention_forward_within(int64_t shared_bytes, bfloat16* o, float* lse, const bfloat16* q,
                                  const bfloat16* k, const bfloat16* v, const AttentionShape& s,
                                  Stream stream);
void mma_attention_backward_within(int64_t shared_bytes, bfloat16* dq, bfloat16* dk, bfloat16* dv,
                                   const bfloat16* d_o, const bfloat16* o, const float* lse,
                                   const bfloat16* q, const bfloat16* k, const bfloat16* v,
                                   const AttentionShape& s, float* delta, Stream stream);

}  // namespace quern::kernels::cuda
