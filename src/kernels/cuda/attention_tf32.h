// Tile sizes of the tensor-core attention of FP32 tensors, and the shared memory they take. Plain
// C++, so that a test without a GPU can hold every size within a laptop GPU's limit.
#pragma once

#include <cstdint>
#include <iterator>

#include "kernels/cuda/attention_tiles.h"

namespace quern::kernels::cuda {

inline constexpr int kTf32Warps = kAttentionThreads / 32;
inline constexpr int kTf32RowsPerFragment = 16;  // of mma.m16n8k8
inline constexpr int kTf32PadBytes = 16;         // after a row in shared memory
inline constexpr int kTf32WidestHead = 128;      // beyond it the CUDA-core kernels run

// As in attention_tiles.h: the first row that is wide enough and fits the device is taken, and the
// last of a width fits kPortableAttentionBytes. Each of 4 warps owns rows / 4 rows. What a thread
// holds must stay below 255 registers:
//   forward  rows (head_dim + columns) / 128
//   dK, dV   rows (2 head_dim + 2 columns) / 128
//   dQ       rows (head_dim + 2 columns) / 128
// where columns count twice in split mode, which keeps a high and a low part of P and of dS.
inline constexpr AttentionTile kTf32ForwardTiles[] = {
    {16, 128, 64}, {32, 128, 64}, {64, 128, 32}, {80, 128, 32}, {96, 128, 16}, {128, 128, 16},
};
inline constexpr AttentionTile kTf32KeyTiles[] = {
    {16, 128, 32}, {32, 128, 32}, {64, 128, 16}, {80, 64, 32}, {96, 64, 16}, {128, 64, 16},
};
inline constexpr AttentionTile kTf32QueryTiles[] = {
    {16, 128, 32}, {32, 128, 32}, {64, 128, 32}, {64, 128, 16},
    {80, 64, 32},  {96, 64, 16},  {128, 64, 16},
};
inline constexpr AttentionTile kSplitForwardTiles[] = {
    {16, 128, 32}, {32, 128, 32}, {64, 128, 32}, {80, 64, 32}, {96, 64, 32}, {128, 64, 32},
};
inline constexpr AttentionTile kSplitKeyTiles[] = {
    {16, 128, 16}, {32, 128, 16}, {64, 64, 32}, {80, 64, 32}, {96, 64, 16}, {128, 64, 16},
};
inline constexpr AttentionTile kSplitQueryTiles[] = {
    {16, 128, 32}, {32, 128, 32}, {64, 128, 16}, {80, 64, 32}, {96, 64, 16}, {128, 64, 16},
};

constexpr int64_t tf32_row_bytes(const AttentionTile& t) {
  return 4 * int64_t{t.head_dim} + kTf32PadBytes;
}
// Q; two stages of K and V.
constexpr int64_t tf32_forward_shared_bytes(const AttentionTile& t) {
  return (t.rows + 2 * 2 * t.columns) * tf32_row_bytes(t);
}
// Two tiles of rows; two stages of two tiles of columns (Q and dO; K and V, or the other way
// round).
constexpr int64_t tf32_backward_shared_bytes(const AttentionTile& t) {
  return (2 * t.rows + 2 * 2 * t.columns) * tf32_row_bytes(t);
}

static_assert(detail::portable(kTf32ForwardTiles, tf32_forward_shared_bytes));
static_assert(detail::portable(kTf32KeyTiles, tf32_backward_shared_bytes));
static_assert(detail::portable(kTf32QueryTiles, tf32_backward_shared_bytes));
static_assert(detail::portable(kSplitForwardTiles, tf32_forward_shared_bytes));
static_assert(detail::portable(kSplitKeyTiles, tf32_backward_shared_bytes));
static_assert(detail::portable(kSplitQueryTiles, tf32_backward_shared_bytes));

// tf32_attention_forward and tf32_attention_backward for a given limit of shared memory a block.
// They pass their device's; a test passes a smaller one, to run a laptop's tiles.
void tf32_attention_forward_within(int64_t shared_bytes, float* o, float* lse, const float* q,
                                   const float* k, const float* v, const AttentionShape& s,
                                   Stream stream);
void tf32_attention_backward_within(int64_t shared_bytes, float* dq, float* dk, float* dv,
                                    const float* d_o, const float* o, const float* lse,
                                    const float* q, const float* k, const float* v,
                                    const AttentionShape& s, float* delta, Stream stream);

// The two kernels of the backward, each for a limit of shared memory.
void tf32_attention_dkdv(int64_t shared_bytes, float* dk, float* dv, const float* d_o,
                         const float* lse, const float* delta, const float* q, const float* k,
                         const float* v, const AttentionShape& s, Stream stream);
void tf32_attention_dq(int64_t shared_bytes, float* dq, const float* d_o, const float* lse,
                       const float* delta, const float* q, const float* k, const float* v,
                       const AttentionShape& s, Stream stream);

}  // namespace quern::kernels::cuda
