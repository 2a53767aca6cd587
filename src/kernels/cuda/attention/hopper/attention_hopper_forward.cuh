// Hopper's forward attention: the layout of shared memory, and a block's tiles of queries.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/hopper/attention_hopper.cuh"

namespace quern::kernels::cuda {

// Shared memory for one entry of kHopperForwardTiles.
template <int kTile>
struct ForwardTiles {
  static constexpr HopperForwardTile tile = kHopperForwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  static constexpr int kKeys = tile.keys;
  static constexpr int kQueries = tile.warpgroups * kWarpgroupRows;
  using Queries = SwizzledTile<kWarpgroupRows, kD>;  // one warpgroup's
  using Keys = SwizzledTile<kKeys, kD>;
  static constexpr int kQBytes = tile.warpgroups * Queries::kBytes;
  static constexpr int kSharedBytes =
      kTileAlignment + tile.q_stages * kQBytes + 2 * tile.stages * Keys::kBytes;

  struct Barriers {
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

  __host__ __device__ static constexpr int64_t units_a_head(int64_t tiles) {
    return tile.causal ? ceil_div(tiles, 2) : tiles;
  }
  // Number of key tiles that any of the queries [q0, q0 + queries) sees.
  __device__ __forceinline__ static int key_tiles(const HopperShape& s, int q0, int queries) {
    if (q0 >= s.Tq) return 0;
    return (s.keys_of(min(q0 + queries, s.Tq) - 1) + kKeys - 1) / kKeys;
  }
};

// An item of work: one tile of queries of one head.
struct ForwardItem {
  int q0, head, batch, key_tiles;
};

// How heads are distributed over blocks. A unit of work is a tile of queries or, when causal, the
// i-th longest tile with the i-th shortest, so that all units take the same time. Blocks take units
// in turn; `together` heads are in progress at a time, so that their K and V stay in L2.
struct ForwardSchedule {
  int units, together;
};

// The items of one block.
template <int kTile>
struct ForwardItems {
  using F = ForwardTiles<kTile>;
  const HopperShape& s;
  const ForwardSchedule& schedule;
  int unit = static_cast<int>(blockIdx.x);
  bool second = false;  // of the unit's two tiles

  __device__ __forceinline__ bool next(ForwardItem& item) {
    const int tiles = (s.Tq + F::kQueries - 1) / F::kQueries;
    if (unit >= schedule.units) return false;
    const int units_a_head = static_cast<int>(F::units_a_head(tiles));
    const int first_head = unit / (units_a_head * schedule.together) * schedule.together;
    const int heads = min(schedule.together, s.B * s.H - first_head);
    const int place = unit - first_head * units_a_head;
    const int head = first_head + place % heads;
    const int longest = tiles - 1 - place / heads, shortest = place / heads;
    item.head = head % s.H;
    item.batch = head / s.H;
    item.q0 = (second ? shortest : longest) * F::kQueries;
    item.key_tiles = F::key_tiles(s, item.q0, F::kQueries);
    if (F::tile.causal && !second && shortest < longest) {
      second = true;
    } else {
      second = false;
      unit += static_cast<int>(gridDim.x);
    }
    return true;
  }
};

}  // namespace quern::kernels::cuda
