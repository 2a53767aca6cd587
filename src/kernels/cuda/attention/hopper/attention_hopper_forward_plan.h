// The order of the work in Hopper's forward attention: the kernel's tiles, and which tiles of
// queries each block takes. Plain C++, so that a test without a GPU can check it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/primitives/tile_order.h"

namespace quern::kernels::cuda {

// `warpgroups` consumers of 64 queries, `keys` a step. K and V each have a ring of `stages` tiles.
// Q has one of q_stages; the output leaves through its memory. turns: consumers issue their
// products in turn, so that one's softmax runs during another's products.
struct HopperForwardTile {
  int head_dim;
  bool causal;
  int warpgroups, keys, stages, q_stages;
  bool turns;

  constexpr int queries() const { return warpgroups * kWarpgroupRows; }
};

// Others that fit the registers: 2 warpgroups with up to 192 keys for D 64, up to 176 for D 80, up
// to 160 for D 96 and 128; turns or none. For D 256, 80 keys are 1 to 5 % slower than 64. From
// D 192 on a second stage of Q does not fit. Sorted by head_dim.
inline constexpr HopperForwardTile kHopperForwardTiles[] = {
    {64, true, 3, 128, 3, 2, true},  {64, false, 3, 128, 3, 2, true},
    {80, true, 3, 96, 3, 2, true},   {80, false, 2, 160, 3, 2, true},
    {96, true, 2, 128, 3, 2, true},  {96, false, 2, 144, 3, 2, true},
    {128, true, 2, 128, 2, 2, true}, {128, false, 2, 128, 2, 2, true},
    {192, true, 2, 96, 2, 1, true},  {192, false, 2, 96, 2, 1, true},
    {256, true, 2, 64, 2, 1, true},  {256, false, 2, 64, 2, 1, true},
};
static_assert(std::ranges::is_sorted(kHopperForwardTiles, {}, &HopperForwardTile::head_dim));

// Index of the narrowest tile for the heads, as hopper_backward_tile's.
constexpr int hopper_forward_tile(const AttentionShape& s) {
  const auto fits = [&](const HopperForwardTile& tile) {
    return tile.head_dim >= s.D && tile.causal == s.causal;
  };
  int i = 0;
  while (!fits(kHopperForwardTiles[i]) && i + 1 < std::ssize(kHopperForwardTiles)) ++i;
  return i;
}

// A tile of one head's queries; the head is one of all batches'.
struct QueryTile {
  int head, tile;
};

// How the tiles of queries are given to blocks. A unit is a tile or, when causal, the i-th longest
// of a head with the i-th shortest, so that all of these take the same time; an odd number of tiles
// leaves the middle one alone. Blocks take units in turn, `together` heads at a time, so that their
// K and V stay in L2.
//
// Units rarely divide by blocks. So when causal, one to two units a block are left until the end,
// and their tiles are dealt out one by one: the longest first, and every second round from the last
// block to the first. The short ones then fill the gaps. The heads of these tiles are all in
// progress at the same time. If these are more than `together` and their K and V exceed
// kDealtBytes, all units are taken whole.
struct ForwardPlan {
  static constexpr int64_t kTogetherBytes = 25 << 20, kDealtBytes = 40 << 20;  // L2 has 50 MiB

  bool causal;
  int tiles, heads;  // tiles of a head's queries; heads of all batches
  int units_a_head, units;
  int blocks;
  int paired;  // units that are taken whole; the others are dealt out
  // Heads in a group, and in the last group, which contains the units that are dealt out. 0: none.
  int together, last_heads;

  ForwardPlan(const AttentionShape& s, const HopperForwardTile& tile, int multiprocessors)
      : causal(s.causal),
        tiles(static_cast<int>(ceil_div(s.Tq, tile.queries()))),
        heads(static_cast<int>(s.B * s.H)),
        units_a_head(causal ? (tiles + 1) / 2 : tiles),
        units(heads * units_a_head),
        blocks(std::min(heads * tiles, multiprocessors)) {
    const int64_t group = s.H / s.Hk;  // of heads that share K and V
    const int64_t kv_bytes = 2 * s.Tk * s.D * static_cast<int64_t>(sizeof(bfloat16));
    together =
        static_cast<int>(std::clamp<int64_t>(kTogetherBytes / kv_bytes, 1, s.B * s.Hk) * group);
    const int dealt_units = causal ? std::min(units, blocks + units % blocks) : 0;
    last_heads = static_cast<int>(ceil_div(dealt_units, units_a_head));
    const bool fits = ceil_div(last_heads, group) * kv_bytes <= kDealtBytes;
    if (last_heads > together && !fits) last_heads = 0;
    paired = last_heads == 0 ? units : units - dealt_units;
  }

  // The longer or the shorter tile of a unit.
  QUERN_HD QueryTile tile_of(int unit, bool shorter) const {
    const auto place =
        GroupedTile<int>::with_last_group(unit, heads, units_a_head, together, last_heads);
    return {place.row, shorter ? place.column : tiles - 1 - place.column};
  }
  QUERN_HD bool has_shorter(const QueryTile& longer) const {
    return causal && longer.tile > tiles - 1 - longer.tile;
  }
  // The i-th tile of those dealt out. Returns false beyond the last one. First come the
  // units' longer tiles, then the shorter ones from the last unit to the first, so that lengths
  // never grow. With an odd number of tiles, the last `last_heads` units have no shorter tile.
  QUERN_HD bool dealt(int i, QueryTile& to) const {
    const int left = units - paired, single = tiles % 2 == 0 ? 0 : last_heads;
    if (i >= 2 * left - single) return false;
    to = i < left ? tile_of(paired + i, false) : tile_of(units - 1 - single - (i - left), true);
    return true;
  }
};

// The tiles of one block, one after the other.
class TilesOfBlock {
 public:
  QUERN_HD TilesOfBlock(const ForwardPlan& plan, int block)
      : plan_(plan), block_(block), unit_(block) {}

  // Returns false after the last one.
  QUERN_HD bool next(QueryTile& to) {
    if (unit_ >= plan_.paired) {
      const int place = round_ % 2 == 0 ? block_ : plan_.blocks - 1 - block_;
      return plan_.dealt(round_++ * plan_.blocks + place, to);
    }
    to = plan_.tile_of(unit_, second_);
    second_ = !second_ && plan_.has_shorter(to);
    if (!second_) unit_ += plan_.blocks;
    return true;
  }

 private:
  const ForwardPlan& plan_;
  int block_, unit_, round_ = 0;
  bool second_ = false;  // the unit's shorter tile is next
};

}  // namespace quern::kernels::cuda
