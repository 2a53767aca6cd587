// The order in which blocks of a tensor-core attention's backward, each with a tile of keys, add
// their shares of dQ to sums in global memory: one key tile after the other.
//
// For every head the key tiles form a queue. The first keys, which have most queries, are in front.
// A block adds its part of a dQ tile after its predecessor in the queue has published its own. So
// every sum has one order, and the result the same bits each time. All blocks of a head walk over
// the queries from the last to the first that sees their keys. So a block follows its predecessor
// at a distance and rarely waits. There is no deadlock: blocks take places in the queue as they
// start, so a predecessor has always started.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma/attention_mma_place.cuh"
#include "kernels/cuda/primitives/mma.cuh"

namespace quern::kernels::cuda {

// Returns the block's place in the order in which blocks start. `mine` is in shared memory, and
// nothing else writes it.
__device__ __forceinline__ unsigned take_ticket(uint32_t* ticket, unsigned* mine) {
  if (threadIdx.x == 0) *mine = atomicAdd(ticket, 1u);
  __syncthreads();
  return *mine;
}

// A walk over query tiles: for each query head of a group, from the last tile down to `first`.
struct QueryWalk {
  int head = 0, tile;  // head: within the group

  __device__ explicit QueryWalk(int tiles) : tile(tiles - 1) {}
  __device__ __forceinline__ void advance(int first, int tiles) {
    if (tile-- > first) return;
    tile = tiles - 1;
    ++head;
  }
  // Grows along the walk, and is the same for every tile of keys.
  __device__ __forceinline__ uint32_t step(int tiles) const {
    return static_cast<uint32_t>(head * tiles + tiles - 1 - tile);
  }
};

// The first tile of queries that sees a tile of keys from k0 on; `tiles` or more if none does.
__device__ __forceinline__ int first_query_tile(const AttentionShape& s, int k0, int columns) {
  const int first = k0 + static_cast<int>(s.Tq - s.Tk);
  return s.causal && first > 0 ? first / columns : 0;
}

// A block's place in a queue: `own` is its progress, `before` its predecessor's, null for the
// first. Without a queue both are null.
class Turn {
 public:
  __device__ Turn(const uint32_t* before, uint32_t* own) : before_(before), own_(own) {}

  // Loads the predecessor's progress. The load takes about as long as a product of tiles, so it is
  // issued ahead of one. The order of two blocks' additions rests on two guarantees:
  // - PTX: the additions of the block before are ordered before its counter, by a barrier and a
  //   release at GPU scope (`publish`).
  // - The hardware, not PTX: an addition behind the branch of `wait` is not issued before the
  //   branch is decided. PTX orders no addition behind a relaxed load by a control dependency.
  // An acquire would give the second one in PTX's terms too, but it empties the L1 cache.
  __device__ __forceinline__ void ask() {
    if (before_ != nullptr) answer_ = load_relaxed(before_);
  }
  // After `ask`: waits until the predecessor has done `step`.
  __device__ __forceinline__ void wait(uint32_t step) {
    if (before_ == nullptr) return;
    while (__shfl_sync(0xffffffffu, answer_, 0) <= step) answer_ = load_relaxed(before_);
  }
  // Publishes that the block's additions up to `step` are visible. One warp calls it, after a
  // barrier behind all additions: to wait until they have arrived takes long.
  __device__ __forceinline__ void publish(uint32_t step) {
    if (own_ == nullptr) return;
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) store_release(own_, step + 1);
  }

 private:
  static __device__ __forceinline__ uint32_t load_relaxed(const uint32_t* p) {
    uint32_t x;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                 : "=r"(x)
                 : "l"(__cvta_generic_to_global(p))
                 : "memory");
    return x;
  }

  const uint32_t* before_;
  uint32_t* own_;
  uint32_t answer_ = 0;  // steps that the block before has done
};

// A block's tile of keys, its part of the features, and the query tiles that it walks over: `steps`
// of them, from first_tile on for each query head that shares the keys.
struct BackwardPlace {
  int queue, tile, key_tiles;  // tile: index among key_tiles; one queue a kv head and part
  int part, b, kv_head, first_head, k0;
  int query_tiles, first_tile, steps;

  // Tiles are of `rows` keys and `columns` queries.
  __device__ __forceinline__ BackwardPlace(const AttentionShape& s, unsigned ticket, int rows,
                                           int columns, int parts) {
    const int Tq = static_cast<int>(s.Tq), group = static_cast<int>(s.H / s.Hk);
    const int64_t queues = s.B * s.Hk * parts;
    const int64_t together = ceil_div(kMmaGroupQueries, max(Tq, 1)) * parts;
    key_tiles = static_cast<int>(ceil_div(s.Tk, rows));
    query_tiles = static_cast<int>(ceil_div(Tq, columns));
    const TileOrder order(ticket, queues, key_tiles, static_cast<unsigned>(min(together, queues)));
    queue = order.head;
    tile = order.tile;
    part = queue % parts;
    b = queue / parts / static_cast<int>(s.Hk);
    kv_head = queue / parts % static_cast<int>(s.Hk);
    first_head = kv_head * group;
    k0 = tile * rows;
    first_tile = first_query_tile(s, k0, columns);
    steps = group * max(query_tiles - first_tile, 0);
  }
  // `progress`: (queues, key tiles); if null, there are no turns.
  __device__ __forceinline__ Turn turn(uint32_t* progress) const {
    if (progress == nullptr) return Turn(nullptr, nullptr);
    uint32_t* const own = progress + static_cast<int64_t>(queue) * key_tiles + tile;
    return Turn(tile > 0 ? own - 1 : nullptr, own);
  }
};

}  // namespace quern::kernels::cuda
