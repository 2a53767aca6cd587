// The plans of Hopper's attention, on the host. For any shape, every tile of queries is computed
// once by the forward, and blocks have about the same work. In the backward, every query head meets
// every tile of keys once, and no item waits for one that begins after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/hopper/attention_hopper_backward_plan.h"
#include "kernels/cuda/attention/hopper/attention_hopper_forward_plan.h"

namespace quern::test {
namespace {

using kernels::AttentionShape;
using kernels::cuda::BackwardItem;
using kernels::cuda::BackwardPlan;
using kernels::cuda::ForwardPlan;
using kernels::cuda::hopper_forward_tile;
using kernels::cuda::HopperForwardTile;
using kernels::cuda::KeyTileOrder;
using kernels::cuda::kHopperForwardTiles;
using kernels::cuda::QueryTile;
using kernels::cuda::TilesOfBlock;

struct Sizes {
  int64_t B, Tq, Tk, H, Hk;
};

AttentionShape shape_of(const Sizes& sizes, bool causal, int64_t D = 64) {
  AttentionShape s;
  s.B = sizes.B, s.Tq = sizes.Tq, s.Tk = sizes.Tk, s.H = sizes.H, s.Hk = sizes.Hk;
  s.D = D;
  s.causal = causal;
  return s;
}

const Sizes kSizes[] = {{1, 1, 1, 1, 1},         {1, 1, 5000, 2, 1},     {2, 700, 700, 6, 2},
                        {3, 333, 1000, 5, 5},    {2, 1000, 333, 7, 1},   {8, 1024, 1024, 12, 2},
                        {16, 1024, 1024, 14, 2}, {4, 512, 512, 12, 12},  {8, 1024, 1024, 32, 32},
                        {1, 16384, 16384, 8, 8}, {40, 130, 130, 12, 4},  {12, 500, 500, 8, 4},
                        {6, 500, 500, 16, 4},    {1, 4096, 4096, 7, 1},  {12, 300, 256, 8, 4},
                        {16, 300, 400, 8, 2},    {16, 400, 256, 6, 6},   {1, 12800, 200000, 1, 1},
                        {1, 21000, 21000, 2, 2}, {1, 4096, 4096, 28, 4}, {2, 2047, 2048, 16, 16}};

// The length of each block's work in tiles of keys.
std::vector<int> forward_work(const AttentionShape& s, int multiprocessors) {
  const HopperForwardTile& tile = kHopperForwardTiles[hopper_forward_tile(s)];
  const ForwardPlan plan(s, tile, multiprocessors);
  EXPECT_LE(plan.blocks, multiprocessors);
  std::map<std::tuple<int, int>, int> computed;
  std::vector<int> work;
  for (int block = 0; block < plan.blocks; ++block) {
    TilesOfBlock tiles(plan, block);
    int steps = 0;
    for (QueryTile at; tiles.next(at);) {
      ++computed[{at.head, at.tile}];
      const int64_t last = std::min<int64_t>((at.tile + 1) * tile.queries(), s.Tq);
      const int64_t keys = s.causal ? std::clamp<int64_t>(last + s.Tk - s.Tq, 0, s.Tk) : s.Tk;
      steps += static_cast<int>(kernels::cuda::ceil_div(keys, tile.keys));
    }
    work.push_back(steps);
  }
  EXPECT_EQ(static_cast<int64_t>(computed.size()), int64_t{plan.heads} * plan.tiles);
  for (const auto& [at, times] : computed) {
    EXPECT_EQ(times, 1) << "head " << std::get<0>(at) << ", tile " << std::get<1>(at);
    EXPECT_GE(std::min(std::get<0>(at), std::get<1>(at)), 0);
    EXPECT_LT(std::get<0>(at), plan.heads);
    EXPECT_LT(std::get<1>(at), plan.tiles);
  }
  return work;
}

TEST(AttentionHopperPlan, ForwardComputesEveryTileOnce) {
  for (const Sizes& sizes : kSizes) {
    for (const bool causal : {false, true}) {
      for (const int64_t D : {64, 80, 112, 136, 256}) {
        for (const int multiprocessors : {1, 7, 114, 132}) {
          SCOPED_TRACE(::testing::Message()
                       << "B " << sizes.B << " Tq " << sizes.Tq << " H " << sizes.H << " causal "
                       << causal << " D " << D << " multiprocessors " << multiprocessors);
          forward_work(shape_of(sizes, causal, D), multiprocessors);
        }
      }
    }
  }
}

// Whole units alone would leave 3 to 40 % of the blocks' time unused.
TEST(AttentionHopperPlan, ForwardSharesTheWorkOutEvenly) {
  for (const auto& [sizes, D, most] : {std::tuple{Sizes{16, 1024, 1024, 16, 16}, 128, 1.01},
                                       {Sizes{1, 16384, 16384, 32, 32}, 64, 1.02},
                                       {Sizes{4, 4096, 4096, 25, 25}, 80, 1.02},
                                       {Sizes{2, 2048, 2048, 10, 10}, 128, 1.15}}) {
    const std::vector<int> work = forward_work(shape_of(sizes, true, D), 132);
    double sum = 0.0;
    for (const int steps : work) sum += steps;
    EXPECT_LE(*std::ranges::max_element(work), most * sum / 132) << "T " << sizes.Tq << " D " << D;
  }
}

// 62 heads, with 62 MiB of keys and values, would leave L2.
TEST(AttentionHopperPlan, ForwardDealsOutWhatStaysInL2) {
  const auto plan = [](const Sizes& sizes, int64_t D) {
    const AttentionShape s = shape_of(sizes, true, D);
    return ForwardPlan(s, kHopperForwardTiles[hopper_forward_tile(s)], 132);
  };
  const ForwardPlan wide = plan({16, 1024, 1024, 8, 8}, 256);
  EXPECT_EQ(wide.last_heads, 0);
  EXPECT_EQ(wide.paired, wide.units);
  EXPECT_EQ(plan({16, 1024, 1024, 8, 4}, 256).last_heads, 62);  // 31 MiB
  EXPECT_EQ(plan({16, 1024, 1024, 16, 16}, 128).last_heads, 58);
  EXPECT_EQ(plan({1, 12800, 200000, 1, 1}, 128).last_heads, 1);  // one head is not more than before
}

// For each query head of a batch and each tile of its queries: the key tiles that add to its dQ, in
// the order in which the items are begun.
struct Contribution {
  int key_tile, before;
};
using Contributions = std::map<std::tuple<int, int, int>, std::vector<Contribution>>;

Contributions contributions(const BackwardPlan& plan, const AttentionShape& s) {
  Contributions found;
  for (int i = 0; i < plan.items; ++i) {
    const BackwardItem item(i, plan, static_cast<int>(s.Hk));
    EXPECT_EQ(item.first_head / plan.group, item.kv_head);
    EXPECT_EQ((item.end_head - 1) / plan.group, item.kv_head);
    for (int h = item.first_head; h < item.end_head; ++h) {
      for (int tile = item.first_tile; tile < plan.query_tiles; ++tile) {
        found[{item.b, h, tile}].push_back(
            {item.key_tile, plan.before(item.key_tile, tile, item.order)});
      }
    }
  }
  return found;
}

void check(const Sizes& sizes, bool causal, int64_t D) {
  SCOPED_TRACE(::testing::Message()
               << "B " << sizes.B << " Tq " << sizes.Tq << " Tk " << sizes.Tk << " H " << sizes.H
               << " Hk " << sizes.Hk << " causal " << causal << " D " << D);
  const AttentionShape s = shape_of(sizes, causal, D);
  const BackwardPlan plan(s);
  const Contributions found = contributions(plan, s);
  for (int b = 0; b < s.B; ++b) {
    for (int h = 0; h < s.H; ++h) {
      for (int tile = 0; tile < plan.query_tiles; ++tile) {
        const int count = plan.last_key_tile(tile) + 1;
        const auto place = found.find({b, h, tile});
        ASSERT_EQ(place != found.end(), count > 0);
        if (count == 0) continue;
        const std::vector<Contribution>& all = place->second;
        ASSERT_EQ(static_cast<int>(all.size()), count);
        for (int i = 0; i < count; ++i) {
          ASSERT_EQ(all[i].before, i) << "key tile " << all[i].key_tile;
        }
      }
    }
  }
}

TEST(AttentionHopperPlan, EveryPairOnceAndNoneWaitsForALaterOne) {
  for (const Sizes& sizes : kSizes) {
    for (const bool causal : {false, true}) {
      for (const int64_t D : {64, 112, 136, 256}) check(sizes, causal, D);
    }
  }
}

TEST(AttentionHopperPlan, NarrowHeadsTakeTheNextTile) {
  for (const auto& [D, width, keys] : {std::tuple{24, 64, 128},
                                       {64, 64, 128},
                                       {72, 80, 128},
                                       {104, 128, 128},
                                       {128, 128, 128},
                                       {136, 192, 64},
                                       {248, 256, 64}}) {
    const BackwardPlan plan(shape_of({1, 100, 100, 1, 1}, true, D));
    EXPECT_EQ(plan.width, width) << D;
    EXPECT_EQ(plan.keys, keys) << D;
  }
}

// Splits where items would be longer than a block's share.
TEST(AttentionHopperPlan, SplitsGroupsWhereItemsAreFew) {
  const auto plan = [](const Sizes& sizes) { return BackwardPlan(shape_of(sizes, true)); };
  EXPECT_EQ(plan({1, 4096, 4096, 7, 1}).parts, 7);
  EXPECT_EQ(plan({40, 1024, 1024, 12, 4}).parts, 1);
  EXPECT_EQ(plan({9, 1024, 1024, 12, 2}).parts, 3);
}

// Query heads of an item: few where the queries of a causal shape are long and their rows wide. By
// measurement (docs/performance-notes.md, round 22).
TEST(AttentionHopperPlan, DividesGroupsThatWouldLeaveL2) {
  const auto heads_an_item = [](const Sizes& sizes, int64_t D, bool causal = true) {
    return BackwardPlan(shape_of(sizes, causal, D)).heads_an_item();
  };
  EXPECT_EQ(heads_an_item({1, 8192, 8192, 32, 8}, 128), 1);
  EXPECT_EQ(heads_an_item({1, 8192, 8192, 32, 8}, 128, false), 4);
  EXPECT_EQ(heads_an_item({4, 4096, 4096, 32, 8}, 128), 2);
  EXPECT_EQ(heads_an_item({4, 4096, 4096, 32, 8}, 64), 4);
  EXPECT_EQ(heads_an_item({1, 4096, 4096, 28, 4}, 128), 2);  // not 4, which would pair up
  EXPECT_EQ(heads_an_item({8, 2048, 2048, 32, 4}, 64), 4);
  EXPECT_EQ(heads_an_item({4, 4096, 4096, 16, 4}, 192), 2);
  EXPECT_EQ(heads_an_item({16, 1024, 1024, 32, 8}, 128), 4);
  EXPECT_EQ(heads_an_item({16, 1024, 1024, 15, 5}, 64), 3);
}

// Items of a second, smaller group of heads would wait for each other.
TEST(AttentionHopperPlan, KeepsFewHeadsTogether) {
  const auto together = [](int64_t heads, bool causal) {
    return BackwardPlan(shape_of({1, 2048, 2048, heads, heads}, causal, 128)).together;
  };
  EXPECT_EQ(together(16, false), 16);
  EXPECT_EQ(together(23, false), 23);
  EXPECT_EQ(together(24, false), 12);  // 24 MiB
  EXPECT_EQ(together(16, true), 12);
  EXPECT_EQ(together(11, true), 11);
}

// The number of heads, or parts of their groups, at the end that begin with their longest tiles.
TEST(AttentionHopperPlan, ReversesTheLastHeads) {
  const auto plan = [](const Sizes& sizes, bool causal = true) {
    const BackwardPlan made(shape_of(sizes, causal));
    EXPECT_EQ(made.order, KeyTileOrder::last_first);
    return made.reversed;
  };
  EXPECT_EQ(plan({8, 1024, 1024, 32, 32}), 50);  // 3 items a block: 396 of 8 tiles
  EXPECT_EQ(plan({1, 16384, 16384, 16, 16}), 4);
  EXPECT_EQ(plan({9, 1024, 1024, 12, 2}), 36);  // two thirds of 54
  EXPECT_EQ(plan({4, 1024, 1024, 12, 12}), 32);
  EXPECT_EQ(plan({4, 512, 512, 16, 16}), 0);  // few items
  EXPECT_EQ(plan({8, 1024, 1024, 32, 32}, false), 0);
  EXPECT_EQ(plan({47, 800, 800, 1, 1}), 0);     // 329 items
  EXPECT_EQ(plan({33, 1200, 1200, 1, 1}), 22);  // 330, of 33 heads
  EXPECT_EQ(plan({1, 50000, 50000, 1, 1}), 0);  // one head
  const BackwardPlan reversed(shape_of({8, 1024, 1024, 32, 32}, true));
  const auto item = [&](int i) { return BackwardItem(i, reversed, 32); };
  const int before = reversed.items - 50 * 8;
  EXPECT_EQ(item(before - 1).order, KeyTileOrder::last_first);
  EXPECT_EQ(item(before - 1).key_tile, 0);  // the longest of its group
  EXPECT_EQ(item(before).order, KeyTileOrder::first_first);
  EXPECT_EQ(item(before).b * 32 + item(before).kv_head, 256 - 50);
  EXPECT_EQ(item(before).key_tile, 0);
  EXPECT_EQ(item(reversed.items - 1).key_tile, 7);
}

// Two items a block, of the same length together.
TEST(AttentionHopperPlan, PairsItemsWhereTheyAreTwoABlock) {
  for (const auto& [sizes, D, parts] : {std::tuple{Sizes{8, 1024, 1024, 12, 2}, 64, 2},
                                        {Sizes{16, 1024, 1024, 14, 2}, 64, 1},
                                        {Sizes{12, 500, 500, 8, 4}, 64, 1},
                                        {Sizes{6, 500, 500, 16, 4}, 64, 2},
                                        {Sizes{8, 250, 250, 16, 8}, 192, 1},
                                        {Sizes{4, 250, 250, 32, 8}, 256, 2}}) {
    const BackwardPlan plan(shape_of(sizes, true, D));
    EXPECT_EQ(plan.order, KeyTileOrder::middle_first);
    EXPECT_EQ(plan.parts, parts);
    const int half = plan.items / 2;
    EXPECT_LE(half, BackwardPlan::kBlocks);
    for (int i = 0; i < half; ++i) {
      const BackwardItem first(i, plan, static_cast<int>(sizes.Hk));
      const BackwardItem second(half + i, plan, static_cast<int>(sizes.Hk));
      EXPECT_EQ(plan.steps(first.key_tile) + plan.steps(second.key_tile),
                plan.query_tiles * (plan.key_tiles + 1) / plan.key_tiles);
    }
  }
}

}  // namespace
}  // namespace quern::test
