// Tile sizes of the tensor-core attention of FP32 tensors, and the shared memory they take. Plain
// C++, so that a test without a GPU can check every size against a laptop GPU's limit.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_tiles.h"
#include "kernels/cuda/plan.h"

namespace quern::kernels::cuda {

inline constexpr int kTf32WidestHead = 128;       // beyond it the CUDA-core kernels run
inline constexpr int kTf32RegisterQueries = 128;  // twice the most Q floats in a lane's registers

// As in attention_tiles.h, the first row that is wide enough and fits the device is taken, and the
// last of a width fits kPortableAttentionBytes. Each of 4 warps owns rows / 4 rows (of 2 where
// there are 32 rows). A thread's numbers must stay below 255 registers:
//   forward  rows (head_dim + columns) / threads
//   dK, dV   rows (2 head_dim + 2 columns) / threads
//   dQ       rows (head_dim + 2 columns) / threads (kTf32BackwardTiles serves both)
// where columns count twice in split mode, which keeps a high and a low part of P and of dS.
// Tiles of 128 rows use each fragment of the other matrix twice. The tile of 64 that follows is
// taken where they would leave the GPU half empty.
inline constexpr AttentionTile kTf32ForwardTiles[] = {
    {16, 128, 64}, {16, 64, 64}, {32, 128, 64}, {32, 64, 64}, {64, 128, 32},  {64, 64, 64},
    {80, 128, 32}, {80, 64, 32}, {96, 128, 16}, {96, 64, 32}, {128, 128, 16}, {128, 64, 32},
};
inline constexpr AttentionTile kTf32BackwardTiles[] = {
    {16, 128, 32}, {16, 64, 32}, {32, 128, 32}, {32, 64, 32}, {64, 128, 32},
    {64, 128, 16}, {64, 64, 32}, {80, 64, 32},  {96, 64, 16}, {128, 64, 16},
};
inline constexpr AttentionTile kSplitForwardTiles[] = {
    {16, 128, 32}, {16, 64, 32}, {32, 128, 32}, {32, 64, 32},  {64, 128, 32},
    {64, 64, 32},  {80, 64, 32}, {96, 64, 32},  {128, 64, 32},
};
inline constexpr AttentionTile kSplitKeyTiles[] = {
    {16, 128, 16}, {16, 64, 32}, {32, 128, 16}, {32, 64, 32},  {64, 64, 32},
    {80, 64, 16},  {96, 64, 16}, {128, 64, 16}, {128, 32, 16},
};
inline constexpr AttentionTile kSplitQueryTiles[] = {
    {16, 128, 32},
    {16, 64, 32},
    {32, 128, 32},
    {32, 64, 32},
};

constexpr int64_t tf32_row_bytes(const AttentionTile& t) {
  return 4 * int64_t{t.head_dim} + kMmaPadBytes;
}
// Q; two stages of K and V.
constexpr int64_t tf32_forward_shared_bytes(const AttentionTile& t) {
  return (t.rows + 2 * 2 * t.columns) * tf32_row_bytes(t);
}
// Whether blocks with a tile of keys add their shares of dQ: five products instead of seven. It
// pays where a step's products take longer than passing on a turn. Elsewhere a separate kernel
// computes dQ.
constexpr bool tf32_adds_dq(bool split, int64_t head_dim) {
  return split && head_dim > 32;
}
constexpr int tf32_backward_threads(const AttentionTile& t) {
  return t.rows / kMmaRowsPerFragment < kMmaWarps ? t.rows / kMmaRowsPerFragment * 32
                                                  : kAttentionThreads;
}
// Two tiles of rows; two stages of two tiles of columns (Q and dO; K and V, or vice versa).
constexpr int64_t tf32_backward_shared_bytes(const AttentionTile& t) {
  return (2 * t.rows + 2 * 2 * t.columns) * tf32_row_bytes(t);
}
// Adds both parts of dS, where it goes into dQ.
constexpr int64_t split_backward_shared_bytes(const AttentionTile& t) {
  const int64_t ds = 2 * t.columns * tf32_row_bytes({t.rows, 0, 0});
  return tf32_backward_shared_bytes(t) + (tf32_adds_dq(true, t.head_dim) ? ds : 0);
}

static_assert(detail::portable(kTf32ForwardTiles, tf32_forward_shared_bytes));
static_assert(detail::portable(kTf32BackwardTiles, tf32_backward_shared_bytes));
static_assert(detail::portable(kSplitForwardTiles, tf32_forward_shared_bytes));
static_assert(detail::portable(kSplitKeyTiles, split_backward_shared_bytes));
static_assert(detail::portable(kSplitQueryTiles, tf32_backward_shared_bytes));

// Index of the tile for head_dim D and `length` rows a head: the first that fits or, where that
// makes too few blocks, one of fewer rows for as many warps.
template <size_t N>
int choose_tf32_tile(const AttentionTile (&tiles)[N], int64_t (*shared_bytes)(const AttentionTile&),
                     int64_t D, int64_t length, int64_t heads, const Tf32Limits& limits) {
  const int chosen = choose_tile(tiles, shared_bytes, D, limits.shared_bytes);
  const AttentionTile& first = tiles[chosen];
  if (heads * ((length + first.rows - 1) / first.rows) >= limits.blocks) return chosen;
  for (int i = chosen + 1; i < static_cast<int>(N); ++i) {
    const AttentionTile& t = tiles[i];
    const bool fits = shared_bytes(t) <= limits.shared_bytes;
    const bool fewer = t.rows < first.rows && t.rows >= kMmaWarps * kMmaRowsPerFragment;
    if (t.head_dim == first.head_dim && fewer && fits) return i;
  }
  return chosen;
}

// Two blocks of a kernel run at a time on a multiprocessor. From three quarters of those blocks on,
// larger tiles are faster.
inline Tf32Limits limits_of(const DeviceTraits& traits) {
  return {traits.shared_bytes_per_block, int64_t{3} * traits.multiprocessors / 2};
}

// The tile of keys for a shape, in the table of its mode.
inline AttentionTile tf32_key_tile(const Tf32Limits& limits, const AttentionShape& s) {
  const int64_t heads = s.B * s.Hk;
  return s.tf32 ? kTf32BackwardTiles[choose_tf32_tile(
                      kTf32BackwardTiles, tf32_backward_shared_bytes, s.D, s.Tk, heads, limits)]
                : kSplitKeyTiles[choose_tf32_tile(kSplitKeyTiles, split_backward_shared_bytes, s.D,
                                                  s.Tk, heads, limits)];
}

// Offsets in bytes at which the parts of the scratch end.
struct Tf32ScratchEnds {
  int64_t statistics, all;

  Tf32ScratchEnds(const AttentionShape& s, const Tf32Limits& limits) {
    statistics = 8 * s.B * s.H * s.Tq;
    all = statistics + 4 * (1 + s.B * s.Hk * ceil_div(s.Tk, tf32_key_tile(limits, s).rows));
  }
};

}  // namespace quern::kernels::cuda
