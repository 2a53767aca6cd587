// The tile tables of the tensor-core attention of FP32 tensors, checked without a GPU: every
// supported head_dim has a tile on a laptop's GPU, and fragments, warps, copies and registers
// divide every tile.
#include "kernels/cuda/attention/tf32/attention_tf32.h"

#include <gtest/gtest.h>

#include "attention_tile_table.h"

namespace quern::test {
namespace {

using namespace kernels::cuda;

template <size_t N>
void check_table(const AttentionTile (&tiles)[N], int64_t (*bytes)(const AttentionTile&),
                 int (*floats)(const AttentionTile&), int widest_head = kTf32WidestHead) {
  int widest = 0;
  for (const AttentionTile& t : tiles) {
    SCOPED_TRACE(::testing::Message() << t.head_dim << " " << t.rows << " " << t.columns);
    EXPECT_GE(t.head_dim, widest);  // the first that is wide enough is taken
    widest = t.head_dim;
    EXPECT_EQ(t.head_dim % 16, 0);  // two tiles of features side by side
    EXPECT_TRUE(t.rows == 32 || t.rows == 64 || t.rows == 128);  // 16 or 32 for each of its warps
    EXPECT_EQ(t.columns % 16, 0);           // one ldmatrix gives two tiles of columns
    EXPECT_EQ(tf32_row_bytes(t) % 32, 16);  // an odd number of chunks: no bank conflicts
    EXPECT_LE(floats(t), 192) << "a thread has 255 registers, about 60 for the rest";
  }
  EXPECT_EQ(widest, widest_head);
  for (int64_t D = 8; D <= widest_head; D += 8) {
    for (const int64_t available : {kLaptopBytes, kHopperBytes}) {
      const AttentionTile& t = tiles[static_cast<size_t>(choose_tile(tiles, bytes, D, available))];
      EXPECT_GE(t.head_dim, D);
      EXPECT_LE(bytes(t), available) << "head_dim " << D;
    }
  }
  EXPECT_THROW(choose_tile(tiles, bytes, widest_head + 8, kHopperBytes), Error);
}

// Floats a thread: 128 threads, 64 for tiles of 32 rows, hold a tile of rows by (features and
// scores), and in split mode the low parts of the scores.
constexpr int floats(const AttentionTile& t, int features, int scores) {
  return t.rows * (features * t.head_dim + scores * t.columns) / tf32_backward_threads(t);
}

TEST(AttentionTf32Tiles, Forward) {
  check_table(kTf32ForwardTiles, tf32_forward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 1); });
  check_table(kSplitForwardTiles, tf32_forward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 2); });
}

TEST(AttentionTf32Tiles, KeyGradients) {
  check_table(kTf32BackwardTiles, tf32_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 2, 2); });
  check_table(kSplitKeyTiles, split_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 2, 3); });
}

TEST(AttentionTf32Tiles, QueryGradients) {
  check_table(kTf32BackwardTiles, tf32_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 2); });
  check_table(
      kSplitQueryTiles, tf32_backward_shared_bytes,
      [](const AttentionTile& t) { return floats(t, 1, 3); }, 32);
  for (int64_t D = 8; D <= kTf32WidestHead; D += 8) {
    EXPECT_EQ(tf32_adds_dq(true, D), D > 32);  // whose blocks of keys add dQ need no tile of it
    EXPECT_FALSE(tf32_adds_dq(false, D));
  }
}

// The warps divide a tile of dQ by its queries, 32 or 16 each, and by groups of 8 features.
TEST(AttentionTf32Tiles, WarpsDivideTheSharesOfQueryGradients) {
  for (const AttentionTile& t : kSplitKeyTiles) {
    SCOPED_TRACE(::testing::Message() << t.head_dim << " " << t.rows << " " << t.columns);
    const int warps = tf32_backward_threads(t) / 32;
    EXPECT_EQ(warps % (t.columns % 32 == 0 ? t.columns / 32 : t.columns / 16), 0);
    EXPECT_EQ(t.rows % 32, 0);  // sums of 4 steps of 8 keys
  }
}

TEST(AttentionTf32Tiles, SharedBytesAreCounted) {
  // Q 128 x 68, K and V twice 32 x 68 floats.
  EXPECT_EQ(tf32_forward_shared_bytes({64, 128, 32}), 4 * (128 * 68 + 4 * 32 * 68));
  // K and V 64 x 132, Q and dO twice 16 x 132, two parts of dS 16 x 68.
  EXPECT_EQ(tf32_backward_shared_bytes({128, 64, 16}), 4 * (2 * 64 * 132 + 4 * 16 * 132));
  EXPECT_EQ(split_backward_shared_bytes({128, 64, 16}),
            4 * (2 * 64 * 132 + 4 * 16 * 132 + 2 * 16 * 68));
  EXPECT_EQ(split_backward_shared_bytes({32, 64, 32}), tf32_backward_shared_bytes({32, 64, 32}));
}

// Fewer rows a block, but only if the preferred tile would leave the GPU half empty.
TEST(AttentionTf32Tiles, SmallTilesFillTheGpu) {
  const auto rows = [](int64_t D, int64_t length, int64_t heads, int64_t blocks) {
    const int index = choose_tf32_tile(kTf32ForwardTiles, tf32_forward_shared_bytes, D, length,
                                       heads, {kHopperBytes, blocks});
    return kTf32ForwardTiles[index].rows;
  };
  EXPECT_EQ(rows(64, 512, 48, 264), 64);  // 192 blocks of 128 rows
  EXPECT_EQ(rows(64, 512, 66, 264), 128);
  EXPECT_EQ(rows(64, 513, 53, 264), 128);  // the last tile of a head counts whole
  EXPECT_EQ(rows(64, 1, 1, 0), 128);
  // The tile of fewer rows must fit as well; a width without one keeps its own tile.
  constexpr AttentionTile kTiles[] = {
      {64, 128, 16}, {64, 64, 256}, {128, 64, 16}, {128, 32, 16}};  // 32 rows: for small GPUs only
  const auto index = [&](int64_t D, int64_t shared_bytes) {
    return choose_tf32_tile(kTiles, tf32_forward_shared_bytes, D, 128, 1, {shared_bytes, 100});
  };
  EXPECT_EQ(index(64, tf32_forward_shared_bytes(kTiles[0])), 0);
  EXPECT_EQ(index(64, tf32_forward_shared_bytes(kTiles[1])), 1);
  EXPECT_EQ(index(128, kHopperBytes), 2);
}

// Two blocks of each tile on a Hopper multiprocessor of 228 KiB. Each block takes 1 KiB beyond its
// request.
TEST(AttentionTf32Tiles, TwoBlocksOnHopper) {
  constexpr int64_t kHalf = (228 << 10) / 2 - 1024;
  const auto expect_two = [&](const auto& tiles, auto bytes, int64_t widest = kTf32WidestHead) {
    for (int64_t D = 8; D <= widest; D += 8) {
      EXPECT_LE(bytes(tiles[choose_tile(tiles, bytes, D, kHopperBytes)]), kHalf) << D;
    }
  };
  expect_two(kTf32ForwardTiles, tf32_forward_shared_bytes);
  expect_two(kSplitForwardTiles, tf32_forward_shared_bytes);
  expect_two(kTf32BackwardTiles, tf32_backward_shared_bytes);
  expect_two(kSplitKeyTiles, split_backward_shared_bytes);
  expect_two(kSplitQueryTiles, tf32_backward_shared_bytes, 32);
}

}  // namespace
}  // namespace quern::test
