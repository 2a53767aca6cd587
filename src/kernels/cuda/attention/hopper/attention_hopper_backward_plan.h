// The order of the work in Hopper's backward attention: how parts of key tiles are given to blocks,
// and in which order the tiles add to dQ. Plain C++, in every build.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/primitives/tile_order.h"

namespace quern::kernels::cuda {

inline constexpr int kScoreWarpgroups = 2;  // of a block
inline constexpr int kBackwardQueries = 64;

// How a block's two score warpgroups divide the work.
enum class BackwardRoles {
  ahead,     // 64 keys each; S^T of the next tile of queries is computed ahead
  in_turn,   // 64 keys each; they issue their products in turn
  by_result  // the same 64 keys: one computes P and dV, the other dS and dK
};

// A block has key_stages tiles of keys. It walks over tiles of 64 queries, of which `stages` are in
// flight, and score_stages of their P or dS. dQ is computed dq_columns at a time. A score
// warpgroup's threads hold dK and dV (D floats, or D / 2 of one of them), 32 floats each of S and
// dP, and 16 words each of P and dS, not all at the same time.
struct HopperBackwardTile {
  int head_dim;
  BackwardRoles roles;
  int key_stages, stages, score_stages;
  int dq_columns;

  constexpr int keys() const {
    return roles == BackwardRoles::by_result ? kWarpgroupRows : kScoreWarpgroups * kWarpgroupRows;
  }
  // dQ is added from registers, not through two buffers of dq_columns in shared memory. Buffers are
  // up to 8 % faster where they hold all of dQ, and 10 to 20 % slower at D 192 and 256.
  constexpr bool dq_direct() const { return roles == BackwardRoles::by_result; }
};
inline constexpr HopperBackwardTile kHopperBackwardTiles[] = {
    {64, BackwardRoles::ahead, 2, 4, 2, 64},      {80, BackwardRoles::ahead, 2, 3, 2, 80},
    {96, BackwardRoles::in_turn, 1, 3, 2, 96},    {128, BackwardRoles::in_turn, 1, 3, 2, 64},
    {192, BackwardRoles::by_result, 1, 3, 3, 64}, {256, BackwardRoles::by_result, 1, 2, 3, 64},
};
static_assert(std::ranges::is_sorted(kHopperBackwardTiles, {}, &HopperBackwardTile::head_dim));

// Index of the narrowest tile for heads of size D, which check_attention takes. A tile pads
// narrower heads with zeros.
constexpr int hopper_backward_tile(int64_t D) {
  int i = 0;
  while (kHopperBackwardTiles[i].head_dim < D && i + 1 < std::ssize(kHopperBackwardTiles)) ++i;
  return i;
}

// An item of work is a tile of keys of one kv head with query heads that share it: all of them or
// one of `parts` parts, where items would be too long for a block's share or L2 too small. Groups
// of heads come one after the other, so that data that a group reads repeatedly stays in L2. (The
// last one of a causal shape may be larger: `reversed`.) Within a group come all heads of one key
// tile, then all of the next. Every item walks over its query tiles from the first one on.
//
// The key tiles of a head come in the order in which they add to dQ, so that an item waits only for
// items that began before it.
enum class KeyTileOrder {
  // Neighbours that run side by side are always at different tiles, each a little behind its
  // predecessor, and need not wait for their turn.
  last_first,
  // The longest first, for the last heads of a causal shape: the short ones fill the gaps at the
  // end. An item may catch up with its predecessor and wait.
  first_first,
  // The first half of the tiles, its last one first, then the second half, its first one first. For
  // causal shapes whose first half gives nearly every block one item. A block with a long item of
  // the first half ends late and gets a short one of the second. All pairs have the same length.
  middle_first
};

struct BackwardPlan {
  // The plan assumes an H200's multiprocessors on every GPU: sums must depend only on the shape.
  static constexpr int kBlocks = 132;
  static constexpr double kLongestOfShare = 0.625;
  // Limits of two items of a block: their length in shares, so that at least 71 of 100 blocks have
  // two, and the wait in their lengths.
  static constexpr double kPairOfShare = 1.4, kWaitOfPair = 0.25;
  // Shares of the time, measured (docs/performance-notes.md, round 22). A causal item's length
  // depends on its keys, so the items of a kv head drift apart over its query heads, and L2 has to
  // hold more: a loss for each further head, by the bytes of as many queries as a tile has keys.
  // Each part adds its own dK and dV in memory: a loss for each, by the queries of a group's heads.
  // More parts have to gain more than the least, since they take memory. Pairs of items gain this.
  static constexpr double kLossOfHead = 0.063 / (128 * 1024), kLossOfPart = 300.0;
  static constexpr double kLeastGain = 0.04, kGainOfPairs = 0.08;
  // By a simulation of blocks that wait for their turn (docs/performance-notes.md, round 19).
  static constexpr double kReversedFrom = 2.5;  // items a block
  static constexpr int kReversedItems = 3;      // a block

  int width;           // columns of the tile, at least D
  int keys, key_bits;  // keys of a tile, 2^key_bits
  int key_tiles, query_tiles;
  int heads;      // kv heads of all batches
  int group;      // query heads a kv head
  int diagonal;   // query i sees the keys up to i + diagonal
  int parts = 1;  // of a group; an item has one of them
  int together;   // (kv head, part) in a group of heads
  // (kv head, part) at the end: a group of their own, in the order first_first.
  int reversed = 0;
  int items;
  KeyTileOrder order = KeyTileOrder::last_first;  // of the heads that are not reversed

  explicit BackwardPlan(const AttentionShape& s)
      : width(kHopperBackwardTiles[hopper_backward_tile(s.D)].head_dim),
        keys(kHopperBackwardTiles[hopper_backward_tile(s.D)].keys()),
        key_bits(std::countr_zero(static_cast<unsigned>(keys))),
        key_tiles(static_cast<int>(ceil_div(s.Tk, keys))),
        query_tiles(static_cast<int>(ceil_div(s.Tq, kBackwardQueries))),
        heads(static_cast<int>(s.B * s.Hk)),
        group(static_cast<int>(s.H / s.Hk)),
        diagonal(static_cast<int>(s.causal ? s.Tk - s.Tq : s.Tk)) {
    // Of a query: Q, dO and the sum of dQ.
    const auto row = static_cast<int64_t>(2 * sizeof(bfloat16) * s.D + sizeof(float) * width);
    if (s.causal) {
      const auto of_heads = [&](int n) {
        return kLossOfHead * static_cast<double>(keys * row * (ceil_div(group, n) - 1));
      };
      const auto of_all = [&](int n) {
        return of_heads(n) + (n == 1 ? 0.0 : kLossOfPart * n / static_cast<double>(s.Tq * group));
      };
      for (int n = 2; n <= group; ++n) parts = of_all(n) + kLeastGain < of_all(parts) ? n : parts;
      pair_up([&](int n) { return of_heads(n) <= of_all(parts) + kGainOfPairs; });
    }
    if (order == KeyTileOrder::last_first) split();
    const int64_t all = int64_t{heads} * parts;
    constexpr int64_t kL2Bytes = 24 << 20;
    const int64_t least = s.causal ? 1 : 8;  // else the items of one head would wait for each other
    const int64_t bytes = s.Tq * heads_an_item() * row;
    const int64_t fitting = std::max(kL2Bytes / std::max<int64_t>(bytes, 1), least);
    // A second, smaller group would have more items of each head at a time, which wait.
    const bool one_group = all < (s.causal ? fitting : 2 * fitting);
    together = static_cast<int>(order != KeyTileOrder::last_first || one_group ? all : fitting);
    items = static_cast<int>(all * key_tiles);
    if (s.causal && order == KeyTileOrder::last_first) reverse_last_heads();
  }

  // Length of an item with one query head, in steps of one query tile.
  int steps(int key_tile) const { return std::max(query_tiles - first_query_tile(key_tile), 0); }
  // A block's share of all steps.
  double share() const {
    double sum = 0.0;
    for (int tile = 0; tile < key_tiles; ++tile) sum += steps(tile);
    return sum * heads * group / kBlocks;
  }
  int heads_an_item() const { return static_cast<int>(ceil_div(group, parts)); }

  // Chooses middle_first in the fewest parts that suit. Changes nothing where none do: parts that
  // are not `allowed`, too many items, idle blocks, or a first half too short for the tiles to
  // follow each other at a distance.
  template <class Allowed>
  void pair_up(Allowed allowed) {
    const int half = key_tiles / 2;
    if (half == 0 || key_tiles % 2 != 0) return;
    int pair = 0;
    for (int tile = 0; tile < half; ++tile) {
      pair = std::max(pair, steps(tile) + steps(key_tiles - 1 - tile));
    }
    // Steps by which the last tile of the first half is behind the first.
    const double wait = keys / kBackwardQueries * half, most = kPairOfShare * share();
    for (int n = 1; n <= group && int64_t{heads} * n * half <= kBlocks; ++n) {
      const int both = pair * static_cast<int>(ceil_div(group, n));
      if (both > most || wait > kWaitOfPair * both || !allowed(n)) continue;
      parts = n;
      order = KeyTileOrder::middle_first;
      return;
    }
  }

  // Makes parts until no item exceeds kLongestOfShare of a block's share.
  void split() {
    const double longest = steps(0), most = kLongestOfShare * share();
    while (parts < group && longest * heads_an_item() > most) ++parts;
  }

  // Reverses the heads of the last kReversedItems items a block, but at most two thirds of all:
  // where all heads begin with their longest tiles, blocks wait for each other.
  void reverse_last_heads() {
    if (items < kReversedFrom * kBlocks) return;
    const auto wanted = static_cast<int>(ceil_div(kReversedItems * kBlocks, key_tiles));
    reversed = std::min(wanted, 2 * heads * parts / 3);
  }

  // The first tile of queries that sees a key of `key_tile`.
  QUERN_HD int first_query_tile(int key_tile) const {
    const int first = key_tile * keys - diagonal;
    return first > 0 ? first / kBackwardQueries : 0;
  }
  // The last tile of keys that `query_tile` sees; -1 when there is none. All up to it add to dQ.
  QUERN_HD int last_key_tile(int query_tile) const {
    const int last_key = (query_tile + 1) * kBackwardQueries - 1 + diagonal;
    const int last = last_key < 0 ? -1 : last_key >> key_bits;
    return last < key_tiles ? last : key_tiles - 1;
  }
  // Maps number `place` in a head's order to a key tile.
  QUERN_HD int in_order(int place, KeyTileOrder head_order) const {
    if (head_order == KeyTileOrder::last_first) return key_tiles - 1 - place;
    const int half = head_order == KeyTileOrder::middle_first ? key_tiles / 2 : 0;
    return place < half ? half - 1 - place : place;
  }
  // Number of key tiles that add to dQ of `query_tile` before `key_tile`, one that it sees.
  QUERN_HD int before(int key_tile, int query_tile, KeyTileOrder head_order) const {
    const int last = last_key_tile(query_tile);
    if (head_order == KeyTileOrder::last_first) return last - key_tile;
    const int half = head_order == KeyTileOrder::middle_first ? key_tiles / 2 : 0;
    if (key_tile >= half) return key_tile;
    return (last < half ? last : half - 1) - key_tile;
  }
};

struct alignas(16) BackwardItem {
  int b, kv_head, key_tile;        // key_tile: -1 after the last item
  int first_tile;                  // the query tile where the walk starts
  int part, first_head, end_head;  // query heads
  KeyTileOrder order;              // of the head's key tiles

  BackwardItem() = default;
  QUERN_HD BackwardItem(int item, const BackwardPlan& plan, int kv_heads) {
    const int rows = plan.heads * plan.parts;
    const auto place =
        GroupedTile<int>::with_last_group(item, rows, plan.key_tiles, plan.together, plan.reversed);
    const int head = place.row / plan.parts;
    part = place.row % plan.parts;
    b = head / kv_heads;
    kv_head = head % kv_heads;
    first_head = kv_head * plan.group + plan.group * part / plan.parts;
    end_head = kv_head * plan.group + plan.group * (part + 1) / plan.parts;
    order = place.row < rows - plan.reversed ? plan.order : KeyTileOrder::first_first;
    key_tile = plan.in_order(place.column, order);
    first_tile = plan.first_query_tile(key_tile);
  }
};

// Sizes of BackwardScratch: floats or counters of each array.
struct BackwardExtents {
  int64_t dq, dkv, delta, turns, key_parts;

  BackwardExtents(const AttentionShape& s, const BackwardPlan& plan)
      : dq(s.B * s.H * plan.query_tiles * kBackwardQueries * plan.width),
        dkv(plan.parts == 1 ? 0 : 2 * int64_t{plan.items} * plan.keys * plan.width),
        delta(s.B * s.H * s.Tq),
        turns(s.B * s.H * plan.query_tiles),
        key_parts(int64_t{plan.heads} * plan.key_tiles * kScoreWarpgroups) {}
  int64_t counters() const { return turns + key_parts + 1; }
  int64_t bytes() const {
    return static_cast<int64_t>(sizeof(float)) * (dq + dkv + delta + counters());
  }
};

inline bool hopper_extents_fit(const AttentionShape& s) {
  constexpr int64_t kMost = int64_t{1} << 30;
  return s.Tq < kMost && s.Tk < kMost && s.B * s.H < kMost &&
         s.B * s.H * ceil_div(s.Tq, kWarpgroupRows) < kMost &&
         s.B * s.H * ceil_div(s.Tk, kWarpgroupRows) < kMost;
}

}  // namespace quern::kernels::cuda
