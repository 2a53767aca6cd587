// The tile tables of the tensor-core attention of FP32 tensors, which need no GPU to be checked:
// every head_dim that the kernels take has a tile on a laptop's GPU, and fragments, warps, copies
// and registers divide every tile.
#include "kernels/cuda/attention_tf32.h"

#include <gtest/gtest.h>

#include "attention_tile_table.h"

namespace quern::test {
namespace {

using namespace kernels::cuda;

template <size_t N>
void check_table(const AttentionTile (&tiles)[N], int64_t (*bytes)(const AttentionTile&),
                 int (*floats)(const AttentionTile&)) {
  int widest = 0;
  for (const AttentionTile& t : tiles) {
    SCOPED_TRACE(::testing::Message() << t.head_dim << " " << t.rows << " " << t.columns);
    EXPECT_GE(t.head_dim, widest);  // the first that is wide enough is taken
    widest = t.head_dim;
    EXPECT_EQ(t.head_dim % 16, 0);  // two tiles of features side by side
    EXPECT_EQ(t.rows % (kTf32Warps * kTf32RowsPerFragment), 0);
    EXPECT_EQ(t.columns % 16, 0);           // one ldmatrix gives two tiles of columns
    EXPECT_EQ(tf32_row_bytes(t) % 32, 16);  // an odd number of chunks: no bank conflicts
    EXPECT_LE(floats(t), 192) << "a thread has 255 registers, about 60 for the rest";
  }
  EXPECT_EQ(widest, kTf32WidestHead);
  for (int64_t D = 8; D <= kTf32WidestHead; D += 8) {
    for (const int64_t available : {kLaptopBytes, kHopperBytes}) {
      const AttentionTile& t = tiles[static_cast<size_t>(choose_tile(tiles, bytes, D, available))];
      EXPECT_GE(t.head_dim, D);
      EXPECT_LE(bytes(t), available) << "head_dim " << D;
    }
  }
  EXPECT_THROW(choose_tile(tiles, bytes, kTf32WidestHead + 8, kHopperBytes), Error);
}

// Floats a thread: 128 threads hold a tile of rows by (features and scores), and in split mode the
// low parts of the scores.
constexpr int floats(const AttentionTile& t, int features, int scores) {
  return t.rows * (features * t.head_dim + scores * t.columns) / kAttentionThreads;
}

TEST(AttentionTf32Tiles, Forward) {
  check_table(kTf32ForwardTiles, tf32_forward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 1); });
  check_table(kSplitForwardTiles, tf32_forward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 2); });
}

TEST(AttentionTf32Tiles, KeyGradients) {
  check_table(kTf32KeyTiles, tf32_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 2, 2); });
  check_table(kSplitKeyTiles, tf32_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 2, 3); });
}

TEST(AttentionTf32Tiles, QueryGradients) {
  check_table(kTf32QueryTiles, tf32_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 2); });
  check_table(kSplitQueryTiles, tf32_backward_shared_bytes,
              [](const AttentionTile& t) { return floats(t, 1, 3); });
}

TEST(AttentionTf32Tiles, SharedBytesAreCounted) {
  // Q 128 x 68, K and V twice 32 x 68 floats.
  EXPECT_EQ(tf32_forward_shared_bytes({64, 128, 32}), 4 * (128 * 68 + 4 * 32 * 68));
  // K and V 64 x 132, Q and dO twice 16 x 132.
  EXPECT_EQ(tf32_backward_shared_bytes({128, 64, 16}), 4 * (2 * 64 * 132 + 4 * 16 * 132));
}

// Fewer rows a block where the preferred tile would leave the GPU half empty, and only there.
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
  // The tile of fewer rows has to fit, too; a width without one keeps its own.
  constexpr AttentionTile kTiles[] = {{64, 128, 16}, {64, 64, 256}, {128, 64, 16}};
  const auto index = [&](int64_t D, int64_t shared_bytes) {
    return choose_tf32_tile(kTiles, tf32_forward_shared_bytes, D, 128, 1, {shared_bytes, 100});
  };
  EXPECT_EQ(index(64, tf32_forward_shared_bytes(kTiles[0])), 0);
  EXPECT_EQ(index(64, tf32_forward_shared_bytes(kTiles[1])), 1);
  EXPECT_EQ(index(128, kHopperBytes), 2);
}

// Two blocks of each on a Hopper multiprocessor of 228 KiB, of which a block takes 1 KiB more than
// it asks for.
TEST(AttentionTf32Tiles, TwoBlocksOnHopper) {
  constexpr int64_t kHalf = (228 << 10) / 2 - 1024;
  const auto expect_two = [&](const auto& tiles, auto bytes) {
    for (int64_t D = 8; D <= kTf32WidestHead; D += 8) {
      EXPECT_LE(bytes(tiles[choose_tile(tiles, bytes, D, kHopperBytes)]), kHalf) << D;
    }
  };
  expect_two(kTf32ForwardTiles, tf32_forward_shared_bytes);
  expect_two(kSplitForwardTiles, tf32_forward_shared_bytes);
  expect_two(kTf32KeyTiles, tf32_backward_shared_bytes);
  expect_two(kSplitKeyTiles, tf32_backward_shared_bytes);
  expect_two(kTf32QueryTiles, tf32_backward_shared_bytes);
  expect_two(kSplitQueryTiles, tf32_backward_shared_bytes);
}

}  // namespace
}  // namespace quern::test
