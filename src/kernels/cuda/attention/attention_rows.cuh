// Tiles in shared memory of the attentions by mma.sync, of BF16 and of FP32 tensors: how rows come
// from global memory, and a block's tiles of queries and keys.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/mma/attention_mma_place.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace quern::kernels::cuda {

// Starts to copy x[row, :] to kRows rows at `tile`, with zeros beyond `rows` rows and D features. x
// points at the tile's first row. A 16-byte chunk is inside or outside as a whole: D is a multiple
// of 8. Without `vectors` rows have any alignment, and elements are moved one by one.
template <int kRows, int kD, int kThreads = kAttentionThreads, class T>
__device__ __forceinline__ void load_rows(uint32_t tile, const T* x, int64_t stride, int rows,
                                          int D, bool vectors) {
  using Rows = PaddedRows<T, kD>;
  constexpr int kVec = kVecSize<T>, kChunks = kD / kVec;
  constexpr int kTotal = kRows * kChunks;
  const int thread = reread_thread();
  if (vectors) {
    if constexpr (kThreads % kChunks == 0) {  // the same chunk of every kStep-th row
      constexpr int kStep = kThreads / kChunks;
      const int row = thread / kChunks, chunk = thread % kChunks;
      const int present = chunk * kVec < D ? rows - row : 0;
      tile += row * Rows::kBytes + chunk * 16;
      x += row * stride + chunk * kVec;
#pragma unroll
      for (int step = 0; step < kRows; step += kStep, x += kStep * stride) {
        if (kRows % kStep != 0 && row + step >= kRows) break;
        copy_async<16>(tile + step * Rows::kBytes, x, step < present);
      }
    } else {
#pragma unroll
      for (int first = 0; first < kTotal; first += kThreads) {
        const int row = (first + thread) / kChunks, chunk = (first + thread) % kChunks;
        if (kTotal % kThreads != 0 && first + thread >= kTotal) break;
        copy_async<16>(tile + row * Rows::kBytes + chunk * 16, x + row * stride + chunk * kVec,
                       row < rows && chunk * kVec < D);
      }
    }
  } else if constexpr (std::is_same_v<T, float>) {
#pragma unroll 1
    for (int e = thread; e < kRows * kD; e += kThreads) {
      const int row = e / kD, d = e % kD;
      copy_async<4>(tile + row * Rows::kBytes + d * 4, x + row * stride + d, row < rows && d < D);
    }
  } else {
#pragma unroll 1
    for (int e = thread; e < kTotal; e += kThreads) {
      const int row = e / kChunks, d = e % kChunks * 8;
      uint32_t pairs[4] = {};
      if (row < rows && d < D) {
        const bfloat16* source = x + row * stride + d;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pairs[i] = source[2 * i].bits | static_cast<uint32_t>(source[2 * i + 1].bits) << 16;
        }
      }
      store_shared(tile + row * Rows::kBytes + d * 2,
                   make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
  }
}

// A block of 4 warps with a tile of kRows queries of one head, the last queries first. It walks
// over tiles of kColumns keys. Shared memory: `own` tiles of its queries, then two stages of K and
// V. Grid: B H ceil(Tq / kRows) blocks in TileOrder.
template <class T, int kD, int kRows, int kColumns>
struct QueryBlock {
  using Rows = PaddedRows<T, kD>;
  static constexpr int kWarpRows = kRows / kMmaWarps;
  static constexpr int kM = kWarpRows / kMmaRowsPerFragment, kN = kColumns / 8;
  static constexpr int kRowBytes = kRows * Rows::kBytes;
  static constexpr int kColumnBytes = kColumns * Rows::kBytes;  // K or V; a stage is both

  const AttentionShape& s;
  const T *k, *v;
  bool vectors;
  uint32_t tile, stages;  // addresses: of the first tile of queries, and of the stages
  int Tq, Tk, D;
  int head, b, h, kv_head, q0, warp_q0, key_tiles;

  __device__ __forceinline__ QueryBlock(const AttentionShape& shape, const T* k, const T* v,
                                        bool vectors, uint32_t shared, int own)
      : s(shape),
        vectors(vectors),
        tile(shared),
        stages(shared + own * kRowBytes),
        Tq(static_cast<int>(s.Tq)),
        Tk(static_cast<int>(s.Tk)),
        D(static_cast<int>(s.D)) {
    const int tiles = static_cast<int>(ceil_div(Tq, kRows)), heads = static_cast<int>(s.H);
    const TileOrder order(s.B * s.H, tiles);
    head = order.head;
    b = head / heads;
    h = head % heads;
    kv_head = h / (heads / static_cast<int>(s.Hk));
    this->k = at(k, s.k_strides, b, 0, kv_head);
    this->v = at(v, s.v_strides, b, 0, kv_head);
    q0 = (tiles - 1 - order.tile) * kRows;
    warp_q0 = q0 + warp_index() * kWarpRows;
    const int end = max(static_cast<int>(keys_end(s, q0, kRows)), 0);
    key_tiles = (end + kColumns - 1) / kColumns;
  }

  // The address of the warp's rows in the first tile of queries.
  __device__ __forceinline__ uint32_t warp_rows() const {
    return tile + warp_index() * kWarpRows * Rows::kBytes;
  }
  __device__ __forceinline__ uint32_t stage(int j) const {
    return stages + j % 2 * (2 * kColumnBytes);
  }
  __device__ __forceinline__ void load_queries(uint32_t to, const T* x,
                                               const int64_t (&strides)[3]) const {
    load_rows<kRows, kD>(to, at(x, strides, b, q0, h), strides[1], Tq - q0, D, vectors);
  }
  __device__ __forceinline__ void load_stage(int j) const {
    const int k0 = j * kColumns;
    load_rows<kColumns, kD>(stage(j), k + k0 * s.k_strides[1], s.k_strides[1], Tk - k0, D, vectors);
    load_rows<kColumns, kD>(stage(j) + kColumnBytes, v + k0 * s.v_strides[1], s.v_strides[1],
                            Tk - k0, D, vectors);
  }
  // Waits for stage j, and starts to copy the next.
  __device__ __forceinline__ void advance(int j) const {
    wait_for_copies();
    __syncthreads();  // tile j is there, and no warp reads tile j - 1 any more
    if (j + 1 < key_tiles) load_stage(j + 1);
  }
};

}  // namespace quern::kernels::cuda
