// Hopper's forward attention: an item of work, and the layout of shared memory. The order of the
// items is in attention_hopper_forward_plan.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/hopper/attention_hopper.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_forward_plan.h"

namespace quern::kernels::cuda {

// An item of work: one tile of queries of one head.
struct ForwardItem {
  int q0, head, batch, key_tiles;  // key_tiles: -1 after the last item
  int before;                      // columns of the tiles before the head's first
};

// Shared memory for one entry of kHopperForwardTiles.
template <int kTile>
struct ForwardTiles {
  static constexpr HopperForwardTile tile = kHopperForwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  static constexpr int kKeys = tile.keys;
  static constexpr int kQueries = tile.queries();
  using Queries = SwizzledTile<kWarpgroupRows, kD>;  // one warpgroup's
  using Keys = SwizzledTile<kKeys, kD>;
  static constexpr int kQBytes = tile.warpgroups * Queries::kBytes;
  static constexpr int kSharedBytes =
      kTileAlignment + tile.q_stages * kQBytes + 2 * tile.stages * Keys::kBytes;

  struct Barriers {
    ForwardItem item[tile.q_stages];  // arrives with its Q
    TileRing<tile.q_stages> q;
    TileRing<tile.stages> k, v;

    __device__ void init() {
      constexpr int kWarps = tile.warpgroups * kWarpgroupSize / kWarpSize;
      q.init({1}, tile.warpgroups);
      k.init({1}, kWarps);
      v.init({1}, kWarps);
      barriers_ready();
    }
  };

  static_assert(kSharedBytes + sizeof(Barriers) <= 227 << 10, "compute capability 9.0's limit");

  // Places of the rings in dynamic shared memory. All tiles have the same swizzle and whole groups
  // of 8 rows, so that each begins where the swizzle's pattern does.
  uint8_t* memory;
  __device__ __forceinline__ uint8_t* q(int stage, int warpgroup) const {
    return memory + stage * kQBytes + warpgroup * Queries::kBytes;
  }
  __device__ __forceinline__ uint8_t* k(int stage) const {
    return memory + tile.q_stages * kQBytes + stage * Keys::kBytes;
  }
  __device__ __forceinline__ uint8_t* v(int stage) const { return k(tile.stages + stage); }

  // Number of key tiles that any of the queries [q0, q0 + queries) sees.
  __device__ __forceinline__ static int key_tiles(const HopperShape& s, int q0, int queries) {
    if (q0 >= s.Tq) return 0;
    return (s.keys_of(min(q0 + queries, s.Tq) - 1) + kKeys - 1) / kKeys;
  }
};

}  // namespace quern::kernels::cuda
