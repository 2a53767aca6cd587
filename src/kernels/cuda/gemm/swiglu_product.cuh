// The two products of swiglu_product.cu beyond their tiles: the source of their B, and the
// finishing of a tile.
#pragma once

#include "kernels/cuda/gemm/product_tiles.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace quern::kernels::cuda {

inline constexpr int kPanelColumns = 64;  // of every operand in shared memory
inline constexpr int kSwigluVector = kVecSize<bfloat16>;

// A finishing thread's share of a tile of kColumns columns of F: kSwigluVector of them, in every
// kDown-th row.
template <int kColumns>
struct FinishShare {
  static constexpr int kAcross = kColumns / kSwigluVector, kDown = kFinishThreads / kAcross;
  static_assert(kDown * kAcross == kFinishThreads && kProductRows % kDown == 0);
  int row, column;  // in the tile, the first ones
  int64_t m, n;     // in all
  int steps;        // existing rows; 0 where the columns are beyond F

  __device__ __forceinline__ FinishShare(const ProductSchedule::Item& item, int rows, int F,
                                         int thread)
      : row(thread / kAcross),
        column(thread % kAcross * kSwigluVector),
        m(item.m0 + row),
        n(item.n0 * kColumns + column),
        steps(n < F ? (min(rows - item.m0, kProductRows) - row + kDown - 1) / kDown : 0) {}
};

// A group of columns of D's tile in shared memory, kSwigluVector from `column` on.
__device__ __forceinline__ uint4 load_group(const uint8_t* tile, int row, int column) {
  return *reinterpret_cast<const uint4*>(tile + ProductOutput::offset(row, column));
}

// A tile's columns: kHalf of gate, and kHalf of up.
struct SwigluForward {
  static constexpr Major kMajor = Major::kK;
  using Tiles = ProductTiles<kMajor>;
  static constexpr int kHalf = kProductColumns / 2;

  CUtensorMap a, b;
  ProductSchedule schedule;
  bfloat16 *gate_up, *y;
  int rows, F;

  __device__ __forceinline__ void load_b(uint8_t* tile, MBarrier& full,
                                         const ProductSchedule::Item& item, int k) const {
    const auto rank = static_cast<int>(cluster_rank());  // 0: of gate, 1: of up
    load_panel_to_cluster(tile + rank * kHalf * Tiles::B::kRowBytes, b, full,
                          item.n0 * kHalf + rank * F, k, 0, 3);
  }
  template <class Wait>
  __device__ __forceinline__ void finish(const uint8_t* tile, const ProductSchedule::Item& item,
                                         int thread, Wait wait) const {
    const FinishShare<kHalf> mine(item, rows, F, thread);
    bfloat16* to = gate_up + mine.m * 2 * F + mine.n;
    bfloat16* to_y = y + mine.m * F + mine.n;
    wait();
#pragma unroll 4
    for (int i = 0; i < mine.steps; ++i) {
      const int row = mine.row + i * mine.kDown;
      const uint4 raw_gate = load_group(tile, row, mine.column);
      const uint4 raw_up = load_group(tile, row, kHalf + mine.column);
      float g[kSwigluVector], u[kSwigluVector], out[kSwigluVector];
      unpack<bfloat16>(g, raw_gate);
      unpack<bfloat16>(u, raw_up);
      swiglu<bfloat16>(out, g, u);
      *reinterpret_cast<uint4*>(to) = raw_gate;
      *reinterpret_cast<uint4*>(to + F) = raw_up;
      store_raw(to_y, out);
      to += int64_t{mine.kDown} * 2 * F, to_y += int64_t{mine.kDown} * F;
    }
  }
};

// A tile's columns: those of y's gradient, which become as many of gate's and up's gradients and,
// if wanted, of y.
template <bool kStoresY>
struct SwigluBackward {
  static constexpr Major kMajor = Major::kMN;
  using Tiles = ProductTiles<kMajor>;
  static constexpr int kPanels = kProductColumns / kPanelColumns;
  static constexpr int kBoxRows = kProductDepth / kProductCluster;  // of B, that a block fetches
  static constexpr int kAhead = 6;  // steps whose gate and up are on their way

  CUtensorMap a, b;
  ProductSchedule schedule;
  bfloat16 *d_gate_up, *y;
  const bfloat16* gate_up;
  int rows, F;

  __device__ __forceinline__ void load_b(uint8_t* tile, MBarrier& full,
                                         const ProductSchedule::Item& item, int k) const {
    const int row = static_cast<int>(cluster_rank()) * kBoxRows;
#pragma unroll
    for (int i = 0; i < kPanels; ++i) {
      load_panel_to_cluster(tile + i * Tiles::B::kPanelBytes + row * Tiles::B::kRowBytes, b, full,
                            k + row, item.n0 * kProductColumns + i * kPanelColumns, 0, 3);
    }
  }
  template <class Wait>
  __device__ __forceinline__ void finish(const uint8_t* tile, const ProductSchedule::Item& item,
                                         int thread, Wait wait) const {
    const FinishShare<kProductColumns> mine(item, rows, F, thread);
    const int64_t step = int64_t{mine.kDown} * 2 * F;
    const bfloat16* from = gate_up + mine.m * 2 * F + mine.n;
    uint4 raw_gate[kAhead], raw_up[kAhead];
    const auto load = [&](int i, uint4& g, uint4& u) {
      if (i >= mine.steps) return;
      g = load_raw<kSwigluVector>(from);
      u = load_raw<kSwigluVector>(from + F);
      from += step;
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(i, raw_gate[i], raw_up[i]);
    wait();
    bfloat16* to = d_gate_up + mine.m * 2 * F + mine.n;
    bfloat16* to_y = y + mine.m * F + mine.n;
#pragma unroll 1
    for (int i0 = 0; i0 < mine.steps; i0 += kAhead) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int i = i0 + ahead;
        if (i >= mine.steps) break;
        float g[kSwigluVector], u[kSwigluVector], grad[kSwigluVector], d_gate[kSwigluVector],
            d_up[kSwigluVector], out[kSwigluVector];
        unpack<bfloat16>(g, raw_gate[ahead]);
        unpack<bfloat16>(u, raw_up[ahead]);
        unpack<bfloat16>(grad, load_group(tile, mine.row + i * mine.kDown, mine.column));
        swiglu_gradients<bfloat16>(d_gate, d_up, out, g, u, grad);
        store_raw(to, d_gate);
        store_raw(to + F, d_up);
        if constexpr (kStoresY) store_raw(to_y, out);
        to += step, to_y += step / 2;
        load(i + kAhead, raw_gate[ahead], raw_up[ahead]);
      }
    }
  }
};

}  // namespace quern::kernels::cuda
