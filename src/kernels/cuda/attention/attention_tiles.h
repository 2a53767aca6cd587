// Tile sizes of the flash attention kernels, and the shared memory they take. Plain C++, so that a
// test without a GPU can check every size against a laptop GPU's limit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "kernels/attention.h"

namespace quern::kernels::cuda {

// A block of 4 warps owns `rows` rows of its matrix (queries; keys for dK and dV) and walks over
// tiles of `columns` of the other one. Heads narrower than head_dim are padded with zeros.
struct AttentionTile {
  int head_dim = 0, rows = 0, columns = 0;
};

inline constexpr int kAttentionThreads = 128;
inline constexpr int64_t kPortableAttentionBytes = 99 << 10;  // smallest opt-in from sm_80 on
inline constexpr int kMmaWarps = kAttentionThreads / 32;
inline constexpr int kMmaRowsPerFragment = 16;  // of mma.m16n8k16 and m16n8k8
inline constexpr int kMmaPadBytes = 16;         // after a row of BF16 or FP32 in shared memory
inline constexpr int kTilePad = 4;   // floats after a row of Q, K, V or dO: 8 rows hit 32 banks
inline constexpr int kScorePad = 8;  // floats after a row of P or dS: 4 rows of 8 hit 32 banks

// choose_tile takes the first row that is wide enough and fits the device: narrow heads first and,
// for one width, the preferred tile. The last of a width must fit kPortableAttentionBytes.
inline constexpr AttentionTile kForwardTiles[] = {
    {32, 64, 64}, {64, 64, 64}, {96, 64, 32}, {128, 64, 32}, {256, 32, 32}, {256, 32, 16},
};
inline constexpr AttentionTile kBackwardTiles[] = {
    {32, 64, 32}, {64, 64, 32}, {96, 32, 32}, {128, 32, 32}, {256, 32, 32}, {256, 16, 16},
};

// Q; K and V; P. All are floats.
constexpr int64_t forward_shared_bytes(const AttentionTile& t) {
  const int64_t wide = int64_t{t.rows + 2 * t.columns} * (t.head_dim + kTilePad);
  return static_cast<int64_t>(sizeof(float)) * (wide + t.rows * (t.columns + kScorePad));
}

// Two tiles of rows, two of columns (Q and dO; K and V, or the other way round); P or dS.
constexpr int64_t backward_shared_bytes(const AttentionTile& t) {
  const int64_t wide = int64_t{2 * t.rows + 2 * t.columns} * (t.head_dim + kTilePad);
  return static_cast<int64_t>(sizeof(float)) * (wide + t.rows * (t.columns + kScorePad));
}

// Index of the first tile for head_dim D that fits available_bytes. Throws when none does.
template <size_t N>
int choose_tile(const AttentionTile (&tiles)[N], int64_t (*shared_bytes)(const AttentionTile&),
                int64_t D, int64_t available_bytes) {
  for (size_t i = 0; i < N; ++i) {
    if (D <= tiles[i].head_dim && shared_bytes(tiles[i]) <= available_bytes) {
      return static_cast<int>(i);
    }
  }
  fail(cat("attention: no tile for head_dim ", D, " within ", available_bytes,
           " bytes of shared memory, expected head_dim <= 256 and at least ",
           kPortableAttentionBytes, " bytes"));
}

namespace detail {
// Every width of the table has a tile that fits any GPU.
template <size_t N>
constexpr bool portable(const AttentionTile (&tiles)[N],
                        int64_t (*shared_bytes)(const AttentionTile&)) {
  for (size_t i = 0; i < N; ++i) {
    const bool last_of_width = i + 1 == N || tiles[i + 1].head_dim != tiles[i].head_dim;
    if (last_of_width && shared_bytes(tiles[i]) > kPortableAttentionBytes) return false;
  }
  return true;
}
}  // namespace detail
static_assert(detail::portable(kForwardTiles, forward_shared_bytes));
static_assert(detail::portable(kBackwardTiles, backward_shared_bytes));

// Criteria for choosing a tile of the tensor-core attention of FP32 tensors: the shared memory that
// a block may have, and the number of blocks that fill the GPU about once.
struct Tf32Limits {
  int64_t shared_bytes = kPortableAttentionBytes;
  int64_t blocks = 0;
};

}  // namespace quern::kernels::cuda
