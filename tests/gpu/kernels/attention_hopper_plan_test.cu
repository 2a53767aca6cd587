// The plan of Hopper's backward attention, on the host: for any shape, every query head meets every
// tile of keys once, and no item waits for one that begins after it.
#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention/hopper/attention_hopper_backward_plan.h"

namespace quern::test {
namespace {

using kernels::AttentionShape;
using kernels::cuda::BackwardItem;
using kernels::cuda::BackwardPlan;
using kernels::cuda::KeyTileOrder;

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

const Sizes kSizes[] = {{1, 1, 1, 1, 1},         {1, 1, 5000, 2, 1},    {2, 700, 700, 6, 2},
                        {3, 333, 1000, 5, 5},    {2, 1000, 333, 7, 1},  {8, 1024, 1024, 12, 2},
                        {16, 1024, 1024, 14, 2}, {4, 512, 512, 12, 12}, {8, 1024, 1024, 32, 32},
                        {1, 16384, 16384, 8, 8}, {40, 130, 130, 12, 4}, {12, 500, 500, 8, 4},
                        {6, 500, 500, 16, 4},    {1, 4096, 4096, 7, 1}, {12, 300, 256, 8, 4},
                        {16, 300, 400, 8, 2},    {16, 400, 256, 6, 6}};

// For each query head of a batch and each tile of its queries: the key tiles that add to its dQ, in
// the order in which the items are begun.
using Contributions = std::map<std::tuple<int, int, int>, std::vector<int>>;

Contributions contributions(const BackwardPlan& plan, const AttentionShape& s) {
  Contributions found;
  for (int i = 0; i < plan.items; ++i) {
    const BackwardItem item(i, plan, static_cast<int>(s.Hk));
    EXPECT_EQ(item.first_head / plan.group, item.kv_head);
    EXPECT_EQ((item.end_head - 1) / plan.group, item.kv_head);
    for (int h = item.first_head; h < item.end_head; ++h) {
      for (int tile = item.first_tile; tile < plan.query_tiles; ++tile) {
        found[{item.b, h, tile}].push_back(item.key_tile);
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
        const std::vector<int>& order = place->second;
        ASSERT_EQ(static_cast<int>(order.size()), count);
        for (int i = 0; i < count; ++i) {
          ASSERT_EQ(plan.before(order[i], tile), i) << "key tile " << order[i];
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
  EXPECT_EQ(plan({9, 1024, 1024, 12, 2}).order, KeyTileOrder::first_first);
  EXPECT_EQ(plan({8, 1024, 1024, 32, 32}).order, KeyTileOrder::last_first);  // many items
  for (const int64_t heads : {12, 16}) {                                     // few, but short ones
    EXPECT_EQ(plan({4, 512, 512, heads, heads}).order, KeyTileOrder::last_first);
  }
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
