// What the parts of Hopper's backward attention share: tile sizes, the scratch memory, and the
// products. For the order of the work see attention_hopper_backward_plan.cuh, for the steps between
// products attention_hopper_gradients.cuh, for the sums of dQ attention_hopper_query_sums.cuh, for
// those of dK and dV attention_hopper_key_sums.cuh.
#pragma once

#include <cstdint>
#include <iterator>

#include "kernels/attention.h"
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/attention_hopper_backward_plan.cuh"
#include "kernels/cuda/attention_hopper_gradients.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace quern::kernels::cuda {

// A block has one warpgroup that copies and two, the consumers, that compute, each for 64 keys of
// its own. They walk over tiles of 64 queries, of which `stages` are in flight, and take turns in
// computing dQ of a tile, dq_columns at a time. A consumer thread holds D floats of dK and dV, 32
// words each of S and dP, half of dq_columns, and 16 each of P and dS, not all at the same time.
struct HopperBackwardTile {
  int head_dim = 0;
  int key_stages = 0, stages = 0;
  int dq_columns = 0;
};
inline constexpr HopperBackwardTile kHopperBackwardTiles[] = {
    {64, 2, 4, 64}, {80, 2, 3, 80}, {128, 1, 3, 64}};
inline constexpr int kHopperBackwardTileCount = static_cast<int>(std::size(kHopperBackwardTiles));

// Index of the tile for head_dim D; -1 when there is none.
constexpr int hopper_backward_tile(int64_t D) {
  for (int i = 0; i < kHopperBackwardTileCount; ++i) {
    if (kHopperBackwardTiles[i].head_dim == D) return i;
  }
  return -1;
}

// What the backward keeps in scratch memory, in this order.
struct BackwardScratch {
  float* dq;        // (B, H, query tiles, 64 D): sums of dQ without the scale, in fragments' order
  float* dkv;       // (B, Hk, key tiles, 2, parts, 2, 64 D) of dV and dK, where there are parts
  float* delta;     // (B, H, Tq): the sum over D of dO O
  uint32_t* turns;  // (B, H, query tiles): how many parts of key tiles have been added to dq
  uint32_t* key_parts;  // (B, Hk, key tiles, 2): how many parts of dK and dV are there
  uint32_t* next;       // the next item of the plan

  // Floats or counters of each.
  struct Extents {
    int64_t dq, dkv, delta, turns, key_parts;

    Extents(const AttentionShape& s, const BackwardPlan& plan)
        : dq(s.B * s.H * plan.query_tiles * kBackwardQueries * s.D),
          dkv(plan.parts == 1 ? 0 : 2 * int64_t{plan.items} * kBackwardKeys * s.D),
          delta(s.B * s.H * s.Tq),
          turns(s.B * s.H * plan.query_tiles),
          key_parts(int64_t{plan.heads} * plan.key_tiles * kBackwardConsumers) {}
    int64_t counters() const { return turns + key_parts + 1; }
    int64_t bytes() const {
      return static_cast<int64_t>(sizeof(float)) * (dq + dkv + delta + counters());
    }
  };

  BackwardScratch(const Extents& extents, void* memory)
      : dq(static_cast<float*>(memory)),
        dkv(dq + extents.dq),
        delta(dkv + extents.dkv),
        turns(reinterpret_cast<uint32_t*>(delta + extents.delta)),
        key_parts(turns + extents.turns),
        next(key_parts + extents.key_parts) {}
};

// d = A B^T over kDepth columns, both operands with rows of D or A in shared memory.
template <class ATile, class BTile, int kDepth, int kRegisters>
__device__ __forceinline__ void multiply_rows(float (&d)[kRegisters], uint64_t a, uint64_t b) {
#pragma unroll
  for (int i = 0; i < kDepth / kWgmmaDepth; ++i) {
    wgmma<Major::kK, Major::kK>(d, a + ATile::k_step(i), b + BTile::k_step(i), i > 0);
  }
}

// d += A B: A (P or dS) from registers, B the rows of a tile.
template <class BTile, int kRegisters, int kSteps>
__device__ __forceinline__ void add_product(float (&d)[kRegisters], const uint32_t (&a)[kSteps][4],
                                            uint64_t b) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) wgmma<Major::kMN>(d, a[i], b + BTile::mn_step(i), true);
}

// d = A^T B over the kRows rows of both tiles.
template <class ATile, class BTile, int kRows, int kRegisters>
__device__ __forceinline__ void multiply_columns(float (&d)[kRegisters], uint64_t a, uint64_t b) {
#pragma unroll
  for (int i = 0; i < kRows / kWgmmaDepth; ++i) {
    wgmma<Major::kMN, Major::kMN>(d, a + ATile::mn_step(i), b + BTile::mn_step(i), i > 0);
  }
}

// A warp has finished reading a stage of a ring.
__device__ __forceinline__ void release(MBarrier& empty) {
  if (threadIdx.x % kWarpSize == 0) empty.arrive();
}

}  // namespace quern::kernels::cuda
