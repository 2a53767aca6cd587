// Places in the portable tensor-core attention: the tile and head of a block, the rows of a warp
// and a lane, and the scores that the mask hides.
#pragma once

#include <climits>
#include <cstdint>

#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/attention/mma/attention_mma.h"

namespace quern::kernels::cuda {

// An array float[kM][kN][4] holds a warp's kM x kN tiles of 16 x 8 elements: this lane has
// [m][n][2 half + i] at row 16 m + 8 half + lane_row() and column 8 n + lane_column() + i.
__device__ __forceinline__ int warp_index() {
  return static_cast<int>(threadIdx.x) / kWarpSize;
}
__device__ __forceinline__ int lane_row(int thread = static_cast<int>(threadIdx.x)) {
  return thread % kWarpSize / 4;
}
__device__ __forceinline__ int lane_column(int thread = static_cast<int>(threadIdx.x)) {
  return thread % 4 * 2;
}

// Calls body(m, n, i) for this lane's elements of a warp's kM x kN tiles of 16 x 8.
template <int kM, int kN, class Body>
__device__ __forceinline__ void for_each_element(Body body) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) body(m, n, i);
    }
  }
}

template <int kM, int kN>
__device__ __forceinline__ void clear(float (&x)[kM][kN][4]) {
  for_each_element<kM, kN>([&](int m, int n, int i) { x[m][n][i] = 0.0f; });
}

// Rereads threadIdx.x, so that values derived from it in a loop are computed there. Otherwise the
// compiler keeps the address of every copy in scarce registers over the whole loop.
__device__ __forceinline__ int reread_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// The scores of a warp's rows and a tile's columns that take part, both counted from their first:
// first <= column - row <= last, row < rows and column < columns.
struct Visible {
  int first = INT_MIN, last = INT_MAX, rows = INT_MAX, columns = INT_MAX;

  __device__ __forceinline__ bool none(int tile_rows, int tile_columns) const {
    return rows <= 0 || columns <= 0 || last < 1 - tile_rows || first > tile_columns - 1;
  }
  __device__ __forceinline__ bool all(int tile_rows, int tile_columns) const {
    return rows >= tile_rows && columns >= tile_columns && last >= tile_columns - 1 &&
           first <= 1 - tile_rows;
  }
};

// Rows are queries from q0, columns keys from k0.
__device__ __forceinline__ Visible visible_keys(const AttentionShape& s, int q0, int k0) {
  Visible visible;
  visible.columns = static_cast<int>(s.Tk) - k0;
  if (s.causal) visible.last = q0 + static_cast<int>(s.Tk - s.Tq) - k0;
  return visible;
}
// Rows are keys from k0, columns queries from q0. Queries beyond Tq are zeros and add nothing. Keys
// beyond Tk must be hidden, because every row counts for dQ.
__device__ __forceinline__ Visible visible_queries(const AttentionShape& s, int k0, int q0) {
  Visible visible;
  visible.rows = static_cast<int>(s.Tk) - k0;
  if (s.causal) visible.first = k0 - (q0 + static_cast<int>(s.Tk - s.Tq));
  return visible;
}

// Sets the scores that take no part to -inf.
template <int kM, int kN>
__device__ __forceinline__ void hide_scores(float (&scores)[kM][kN][4], const Visible& visible) {
  const int thread = reread_thread();
  const int lane_diagonal = lane_column(thread) - lane_row(thread);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int row = 16 * m + i / 2 * 8 + lane_row(thread);
        const int column = 8 * n + lane_column(thread) + i % 2;
        const int diagonal = lane_diagonal + 8 * n + i % 2 - (16 * m + i / 2 * 8);
        if (diagonal < visible.first || diagonal > visible.last || row >= visible.rows ||
            column >= visible.columns) {
          scores[m][n][i] = -INFINITY;
        }
      }
    }
  }
}

// The kernels count positions in ints, and sum two of them.
inline void check_mma_attention(const AttentionShape& s) {
  constexpr int64_t kLongest = 1 << 30;
  check_attention(s);
  QUERN_CHECK(s.Tq <= kLongest && s.Tk <= kLongest, "attention: q has length ", s.Tq,
              ", k has length ", s.Tk, ", expected at most ", kLongest);
  QUERN_CHECK(s.scale > 0, "attention: scale is ", s.scale, ", expected more than 0");
}

// A block's head and tile. Heads form groups; by default a group fills the GPU about once. The
// first tiles of all heads of a group come first. If the longest tile is the first, no long one
// starts late. The heads in progress are few enough for their data to stay in the L2 cache.
struct TileOrder {
  int head, tile;

  __device__ TileOrder(int64_t heads, int tiles)
      : TileOrder(blockIdx.x, heads, tiles, (kMmaWaveBlocks + tiles - 1) / tiles) {}
  __device__ TileOrder(unsigned block, int64_t all_heads, int tiles, unsigned together) {
    const auto heads = static_cast<unsigned>(all_heads);  // heads x tiles is a grid, below 2^31
    const unsigned first = block / (together * tiles) * together;
    const unsigned within = block % (together * tiles);
    const unsigned here = heads - first < together ? heads - first : together;
    head = static_cast<int>(first + within % here);
    tile = static_cast<int>(within / here);
  }
};

}  // namespace quern::kernels::cuda
