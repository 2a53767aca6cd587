// The order of the work in Hopper's backward attention: which block computes which part of which
// tile of keys, and in which order the tiles add to dQ.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace quern::kernels::cuda {

inline constexpr int kBackwardConsumers = 2;  // warpgroups, each with 64 keys of its own
inline constexpr int kBackwardKeys = kBackwardConsumers * kWarpgroupRows;
inline constexpr int kBackwardQueries = 64;

// The work: an item is a tile of keys of one kv head, with all of the query heads that share it or,
// where that would make items longer than a block's share of the work, with some of them (`parts`
// a kv head). Groups of heads come one after the other, so that what a group reads over and over
// stays in L2; within a group all heads of one key tile, then all of the next. Every item walks
// over its query tiles from the first one on.
//
// The key tiles of a head come in the order in which they add to dQ, so that an item waits only
// for items that were begun before it. Where causal, either
//   the last first: neighbours that run side by side are always at different tiles, each a little
//     behind its predecessor, and need not wait for their turn, or
//   the first, which is the longest, first: when items are few a block, the short ones then fill
//     the gaps at the end. An item may catch up with the one before it, so there must be heads
//     enough to keep them apart, or queries enough to make the wait a short one.
struct BackwardPlan {
  // An H200's multiprocessors, whatever the GPU: sums must not depend on anything but the shape.
  static constexpr int kBlocks = 132;
  static constexpr double kLongestOfShare = 0.625, kFewItems = 2.5, kWaitOfLongest = 0.25;

  int key_tiles, query_tiles;
  int heads;      // kv heads of all batches
  int group;      // query heads a kv head
  int diagonal;   // query i sees the keys up to i + diagonal
  int parts = 1;  // of a group; an item has one of them
  int together;   // (kv head, part) in a group of heads
  int items;
  bool longest_first;

  explicit BackwardPlan(const AttentionShape& s)
      : key_tiles(static_cast<int>(ceil_div(s.Tk, kBackwardKeys))),
        query_tiles(static_cast<int>(ceil_div(s.Tq, kBackwardQueries))),
        heads(static_cast<int>(s.B * s.Hk)),
        group(static_cast<int>(s.H / s.Hk)),
        diagonal(static_cast<int>(s.causal ? s.Tk - s.Tq : s.Tk)) {
    // In steps of one query tile: the longest item of one query head, and a block's share of all.
    const double longest = query_tiles - first_query_tile(0);
    double steps = 0.0;
    for (int tile = 0; tile < key_tiles; ++tile) {
      steps += std::max(query_tiles - first_query_tile(tile), 0);
    }
    const double share = steps * heads * group / kBlocks;
    const auto heads_an_item = [&] { return ceil_div(group, parts); };
    while (parts < group && longest * heads_an_item() > kLongestOfShare * share) ++parts;
    const double longest_item = longest * heads_an_item();
    const int64_t all = int64_t{heads} * parts;
    // Steps that the blocks of the first turn wait for the tile of keys before theirs.
    const double wait = 1.0 * kBackwardKeys / kBackwardQueries * kBlocks / all;
    longest_first =
        s.causal && kFewItems * longest_item > share && wait <= kWaitOfLongest * longest_item;

    constexpr int64_t kL2Bytes = 24 << 20;
    const int64_t least = s.causal ? 1 : 8;  // else the items of one head would wait for each other
    const int64_t bytes = s.Tq * s.D * heads_an_item() * (2 * sizeof(bfloat16) + sizeof(float));
    const int64_t fitting = std::max(kL2Bytes / std::max<int64_t>(bytes, 1), least);
    together = static_cast<int>(longest_first ? all : std::min(fitting, all));
    items = static_cast<int>(all * key_tiles);
  }

  // The first tile of queries that sees a key of `key_tile`.
  __host__ __device__ __forceinline__ int first_query_tile(int key_tile) const {
    const int first = key_tile * kBackwardKeys - diagonal;
    return first > 0 ? first / kBackwardQueries : 0;
  }
  // The last tile of keys that `query_tile` sees; -1 when there is none. All up to it add to dQ.
  __host__ __device__ __forceinline__ int last_key_tile(int query_tile) const {
    const int last_key = (query_tile + 1) * kBackwardQueries - 1 + diagonal;
    const int last = last_key < 0 ? -1 : last_key / kBackwardKeys;
    return last < key_tiles ? last : key_tiles - 1;
  }
  // How many tiles of keys add to dQ of `query_tile` before `key_tile` does, which sees it.
  __host__ __device__ __forceinline__ int before(int key_tile, int query_tile) const {
    return longest_first ? key_tile : last_key_tile(query_tile) - key_tile;
  }
  // `key_tile` is the last to add to dQ of the query tiles that see it and come before this one.
  __host__ __device__ __forceinline__ int finished_tiles(int key_tile) const {
    if (key_tile == (longest_first ? key_tiles - 1 : 0)) return query_tiles;
    return longest_first ? first_query_tile(key_tile + 1) : 0;
  }
};

struct BackwardItem {
  int b, kv_head, key_tile;
  int first_tile, finished_tiles;  // of queries: walked from, and finished up to (exclusive)
  int part, first_head, end_head;  // query heads

  __host__ __device__ __forceinline__ BackwardItem(int item, const BackwardPlan& plan,
                                                   int kv_heads) {
    const int of_group = item / (plan.key_tiles * plan.together);
    const int first = of_group * plan.together;
    const int left = plan.heads * plan.parts - first;
    const int in_group = left < plan.together ? left : plan.together;
    const int rest = item - first * plan.key_tiles;
    const int place = first + rest % in_group, head = place / plan.parts;
    part = place % plan.parts;
    b = head / kv_heads;
    kv_head = head % kv_heads;
    first_head = kv_head * plan.group + plan.group * part / plan.parts;
    end_head = kv_head * plan.group + plan.group * (part + 1) / plan.parts;
    key_tile = plan.longest_first ? rest / in_group : plan.key_tiles - 1 - rest / in_group;
    first_tile = plan.first_query_tile(key_tile);
    finished_tiles = plan.finished_tiles(key_tile);
  }

  // Whether this item is the last to add to dQ of `tile`, and so the one to finish it.
  __host__ __device__ __forceinline__ bool finishes(int tile) const {
    return tile < finished_tiles;
  }
};

}  // namespace quern::kernels::cuda
