// Copies of whole tiles by the tensor memory accelerator, for tensor maps of tma.h. One thread
// issues each copy.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/bulk_copy.cuh"
#include "kernels/cuda/primitives/tma.h"

namespace quern::kernels::cuda {

// Fetches the map itself ahead of its first use.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies a Tile (SwizzledTile) from token `row` on to shared memory (1024-byte aligned). Its bytes,
// including those beyond T and D, count towards the barrier's phase. padded: the map's heads are
// narrower than the tile, which is then copied panel by panel; its first `before` columns, like
// those beyond D, become zeros.
template <class Tile>
__device__ __forceinline__ void load_tile_async(void* tile, const CUtensorMap& map,
                                                MBarrier& barrier, int row, int head, int batch,
                                                bool padded, int before = 0) {
  const auto load = [&](int panel) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared_address(tile) +
                                                        panel * Tile::kPanelBytes),
        "l"(&map), "r"(shared_address(&barrier)), "r"(panel * Tile::kSpan - before), "r"(row),
        "r"(0), "r"(head), "r"(batch)
        : "memory");
  };
  load(0);
  if (!padded) return;
#pragma unroll 1  // few registers
  for (int panel = 1; panel < Tile::kPanels; ++panel) load(panel);
}

// Copies a panel of a make_panel_map map, from (row, column) of one matrix on, to shared memory.
// The panel's tile is 1024-byte aligned. Counts as load_tile_async does.
__device__ __forceinline__ void load_panel_async(void* panel, const CUtensorMap& map,
                                                 MBarrier& barrier, int row, int column,
                                                 int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(panel)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}

// load_panel_async to each block of the cluster whose bit is set in `blocks`: to the same place in
// its shared memory, counted by its own barrier there.
__device__ __forceinline__ void load_panel_to_cluster(void* panel, const CUtensorMap& map,
                                                      MBarrier& barrier, int row, int column,
                                                      int matrix, uint32_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(panel)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "r"(matrix),
      "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

// Copies a Tile in shared memory to global memory; elements beyond T and D are not written. The
// threads that wrote the shared tile call fence_async_proxy and synchronize first.
template <class Tile>
__device__ __forceinline__ void store_tile_async(const CUtensorMap& map, const void* tile, int row,
                                                 int head, int batch, bool padded) {
#pragma unroll 1
  for (int panel = 0; panel < (padded ? Tile::kPanels : 1); ++panel) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
        "[%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
        "r"(shared_address(tile) + panel * Tile::kPanelBytes), "r"(panel * Tile::kSpan), "r"(row),
        "r"(0), "r"(head), "r"(batch)
        : "memory");
  }
}

}  // namespace quern::kernels::cuda
