// The product of split operands: the layout of shared memory, and a block's tiles.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/gemm/gemm_split.h"
#include "kernels/cuda/primitives/persistent.cuh"
#include "kernels/cuda/primitives/tile_order.h"

namespace quern::kernels::cuda {

inline constexpr int kSplitConsumers = kSplitTileRows / kWarpgroupRows;

// The three parts of kExtent rows of op(A), or columns of op(B), by kSplitDepth of K.
template <int kExtent, Major kMajor>
struct SplitOperand {
  static constexpr bool kByK = kMajor == Major::kK;  // K runs along the stored rows
  using Tile = std::conditional_t<kByK, SwizzledTile<kExtent, kSplitDepth>,
                                  SwizzledTile<kSplitDepth, kExtent>>;
  static constexpr int kBytes = kSplitPlanes * Tile::kBytes;
  static constexpr int kPanelRows = kByK ? kExtent : kSplitDepth;
  static constexpr int kPanels = Tile::kBytes / Tile::kPanelBytes;
  static_assert(Tile::kBytes % kTileAlignment == 0);

  // One thread loads from M or N index `first` and K index `k` on, with zeros beyond the matrix.
  __device__ __forceinline__ static void load(uint8_t* planes, const CUtensorMap& map,
                                              MBarrier& full, int first, int k, int matrix) {
#pragma unroll
    for (int i = 0; i < kSplitPlanes * kPanels; ++i) {
      const int shift = i % kPanels * Tile::kSpan;  // 0 where K runs along the rows: one panel
      load_panel_async(planes + i * Tile::kPanelBytes, map, full, kByK ? first : k,
                       kByK ? k : first + shift, matrix * kSplitPlanes + i / kPanels);
    }
  }

  // wgmma's descriptor from M or N index `first` (a multiple of 64) on. Add place(plane, i) for
  // that plane's K from 16 i on.
  __device__ __forceinline__ static uint64_t descriptor(const uint8_t* planes, int first) {
    if constexpr (kByK) {
      return Tile::k_major(planes, first);
    } else {
      return Tile::mn_major(planes, first);
    }
  }
  __device__ static constexpr uint64_t place(int plane, int i) {
    const uint64_t step = kByK ? Tile::k_step(i) : Tile::mn_step(i);
    return static_cast<uint64_t>(plane * Tile::kBytes >> 4) + step;
  }
};

// Shared memory for one entry of kSplitTiles and one way of storing the operands.
template <int kTile, Major kA, Major kB>
struct SplitTiles {
  static constexpr SplitTile tile = kSplitTiles[kTile];
  using A = SplitOperand<kSplitTileRows, kA>;
  using B = SplitOperand<tile.columns, kB>;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kSharedBytes = kTileAlignment + tile.stages * kStageBytes;

  struct Barriers {
    TileRing<tile.stages> ring;

    __device__ void init() {
      ring.init({1}, kSplitConsumers * kWarpgroupSize / kWarpSize);
      barriers_ready();
    }
  };
  static_assert(kSharedBytes + sizeof(Barriers) <= 227 << 10, "compute capability 9.0's limit");

  uint8_t* memory;
  __device__ __forceinline__ uint8_t* a(int stage) const { return memory + stage * kStageBytes; }
  __device__ __forceinline__ uint8_t* b(int stage) const { return a(stage) + A::kBytes; }
};

// A unit of work: a tile of one matrix of D, and a share of K in blocks of kSplitDepth.
struct SplitItem {
  int m0, n0, matrix, part, first_block, end_block;
};

// The units of a product, which the thread blocks take in turn: tiles in the order of GroupedTile.
struct SplitSchedule {
  static constexpr int kGroup = 16;
  int tiles_m, tiles_n, parts, blocks, units;  // blocks: of K

  __device__ __forceinline__ SplitItem item(int unit, int columns) const {
    const int tiles = tiles_m * tiles_n, share = unit / tiles;
    const GroupedTile<int> tile(unit % tiles, tiles_m, tiles_n, kGroup);
    SplitItem item;
    item.m0 = tile.row * kSplitTileRows;
    item.n0 = tile.column * columns;
    item.matrix = share / parts;
    item.part = share % parts;
    item.first_block = item.part * blocks / parts;
    item.end_block = (item.part + 1) * blocks / parts;
    return item;
  }
};

}  // namespace quern::kernels::cuda
