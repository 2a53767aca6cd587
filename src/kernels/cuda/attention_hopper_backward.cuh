// What the parts of Hopper's backward attention share: tile sizes, the order of the work, the
// scratch memory, and the products. For the steps between those see
// attention_hopper_gradients.cuh, for the sums of dQ attention_hopper_query_sums.cuh.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/attention.h"
#include "kernels/cuda/attention_hopper.cuh"
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
inline constexpr int kBackwardConsumers = 2;
inline constexpr int kBackwardKeys = kBackwardConsumers * kWarpgroupRows;
inline constexpr int kBackwardQueries = 64;

// Index of the tile for head_dim D; -1 when there is none.
constexpr int hopper_backward_tile(int64_t D) {
  for (int i = 0; i < kHopperBackwardTileCount; ++i) {
    if (kHopperBackwardTiles[i].head_dim == D) return i;
  }
  return -1;
}

// The work: an item is a tile of keys of one kv head. Groups of heads come one after the other, so
// that what a group reads over and over stays in L2; within a group the key tiles from the last one
// down, each for all heads. Every item walks over its query tiles from the first one on. Where
// causal, the items of a head that run side by side are thus always at different tiles, each a
// little behind its successor, and need not wait for their turn to add to a tile's dQ.
struct BackwardPlan {
  int key_tiles, query_tiles, heads, together, items;
  int group;     // query heads a kv head
  int diagonal;  // query i sees the keys up to i + diagonal

  explicit BackwardPlan(const AttentionShape& s)
      : key_tiles(static_cast<int>(ceil_div(s.Tk, kBackwardKeys))),
        query_tiles(static_cast<int>(ceil_div(s.Tq, kBackwardQueries))),
        heads(static_cast<int>(s.B * s.Hk)),
        items(heads * key_tiles),
        group(static_cast<int>(s.H / s.Hk)),
        diagonal(static_cast<int>(s.causal ? s.Tk - s.Tq : s.Tk)) {
    constexpr int64_t kL2Bytes = 24 << 20;
    const int64_t least = s.causal ? 1 : 8;  // else the items of one head would wait for each other
    const int64_t bytes = s.Tq * s.D * group * (2 * sizeof(bfloat16) + sizeof(float));
    together = static_cast<int>(
        std::min<int64_t>(std::max(kL2Bytes / std::max<int64_t>(bytes, 1), least), heads));
  }

  // The first tile of queries that sees a key of `key_tile`.
  __device__ __forceinline__ int first_query_tile(int key_tile) const {
    return max(key_tile * kBackwardKeys - diagonal, 0) / kBackwardQueries;
  }
  // The last tile of keys that `query_tile` sees; -1 when there is none. The first to add to dQ.
  __device__ __forceinline__ int last_key_tile(int query_tile) const {
    const int last_key = (query_tile + 1) * kBackwardQueries - 1 + diagonal;
    return last_key < 0 ? -1 : min(last_key / kBackwardKeys, key_tiles - 1);
  }
};

struct BackwardItem {
  int b, kv_head, key_tile, first_tile;

  __device__ __forceinline__ BackwardItem(int item, const BackwardPlan& plan, int kv_heads) {
    const int of_group = item / (plan.key_tiles * plan.together);
    const int first = of_group * plan.together;
    const int in_group = min(plan.heads - first, plan.together);
    const int rest = item - first * plan.key_tiles;
    const int head = first + rest % in_group;
    b = head / kv_heads;
    kv_head = head % kv_heads;
    key_tile = plan.key_tiles - 1 - rest / in_group;
    first_tile = plan.first_query_tile(key_tile);
  }
};

// What the backward keeps in scratch memory, in this order.
struct BackwardScratch {
  float* dq;        // (B, H, query tiles, 64 D): sums of dQ without the scale, in fragments' order
  float* delta;     // (B, H, Tq): the sum over D of dO O
  uint32_t* turns;  // (B, H, query tiles): how many parts of key tiles have been added to dq
  uint32_t* next;   // the next item of the plan

  static int64_t tiles(const AttentionShape& s) {
    return s.B * s.H * ceil_div(s.Tq, kBackwardQueries);
  }
  static int64_t bytes(const AttentionShape& s) {
    return static_cast<int64_t>(sizeof(float)) *
           (tiles(s) * (kBackwardQueries * s.D + 1) + s.B * s.H * s.Tq + 1);
  }
  BackwardScratch(const AttentionShape& s, void* memory)
      : dq(static_cast<float*>(memory)),
        delta(dq + tiles(s) * kBackwardQueries * s.D),
        turns(reinterpret_cast<uint32_t*>(delta + s.B * s.H * s.Tq)),
        next(turns + tiles(s)) {}
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
