// A ring of tiles in shared memory that a producer fills and consumers empty, with the barriers at
// which they wait for each other.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/mbarrier.cuh"

namespace quern::kernels::cuda {

// A position in a ring of kStages. Each side advances its own, in the same order.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The barriers of a ring; lies in shared memory. A stage has kTiles tiles that arrive one by one
// and are released together.
template <int kStages, int kTiles = 1>
struct TileRing {
  using Place = RingPlace<kStages>;
  MBarrier full[kTiles][kStages], empty[kStages];

  // Called by one thread, which then calls barriers_ready. fills: arrivals that fill each tile.
  // releases: arrivals that free a stage.
  __device__ __forceinline__ void init(const uint32_t (&fills)[kTiles], uint32_t releases) {
    for (int i = 0; i < kStages; ++i) {
      for (int tile = 0; tile < kTiles; ++tile) full[tile][i].init(fills[tile]);
      empty[i].init(releases);
    }
  }

  // The producer's side: waits until the stage is free (in the first round it is), and announces a
  // tile's bytes. Copies then count towards the barrier that `expect` returns.
  __device__ __forceinline__ void wait_empty(const Place& at) const {
    empty[at.stage].wait(at.parity ^ 1);
  }
  __device__ __forceinline__ MBarrier& expect(const Place& at, uint32_t bytes, int tile = 0) {
    full[tile][at.stage].arrive_expecting(bytes);
    return full[tile][at.stage];
  }

  // The consumers' side: waits for a tile, and releases a stage. Whole warps release, with one
  // arrival each.
  __device__ __forceinline__ void wait_full(const Place& at, int tile = 0) const {
    full[tile][at.stage].wait(at.parity);
  }
  __device__ __forceinline__ void release(int stage, int thread) {
    if (thread % 32 == 0) empty[stage].arrive();
  }
};

}  // namespace quern::kernels::cuda
