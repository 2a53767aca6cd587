// The tile tables of the portable tensor-core attention, which need no GPU to be checked: every
// head_dim has a tile on a laptop's GPU, and fragments, warps and registers divide every tile.
#include "attention_tile_table.h"
#include "kernels/cuda/attention_mma.h"

namespace quern::test {
namespace {

using namespace kernels::cuda;

template <size_t N>
void check_table(const AttentionTile (&tiles)[N], int64_t (*bytes)(const AttentionTile&),
                 int (*accumulators)(const AttentionTile&)) {
  check_tile_table(tiles, bytes, [=](const AttentionTile& t) {
    EXPECT_EQ(t.head_dim % 16, 0);  // a step of mma
    EXPECT_EQ(t.rows % (kMmaWarps * kMmaRowsPerFragment), 0);
    EXPECT_EQ(t.columns % 16, 0);          // columns of the scores are a step of the next product
    EXPECT_EQ(mma_row_bytes(t) % 32, 16);  // an odd number of chunks: no bank conflicts
    EXPECT_LE(accumulators(t), 192) << "a thread has 255 registers, about 60 for the rest";
  });
}

// Floats a thread: 128 threads hold a tile of rows by (features and scores).
TEST(AttentionMmaTiles, Forward) {
  check_table(kMmaForwardTiles, mma_forward_shared_bytes, [](const AttentionTile& t) {
    return t.rows * (t.head_dim + t.columns) / kAttentionThreads;
  });
}

TEST(AttentionMmaTiles, KeyGradients) {
  check_table(kMmaKeyTiles, mma_backward_shared_bytes, [](const AttentionTile& t) {
    return t.rows * 2 * (mma_key_features(t) + t.columns) / kAttentionThreads;
  });
  for (const AttentionTile& t : kMmaKeyTiles) {
    EXPECT_EQ(mma_key_features(t) % 16, 0) << t.head_dim;
    EXPECT_EQ(t.head_dim % mma_key_features(t), 0) << t.head_dim;
  }
}

TEST(AttentionMmaTiles, QueryGradients) {
  check_table(kMmaQueryTiles, mma_backward_shared_bytes, [](const AttentionTile& t) {
    return t.rows * (t.head_dim + 2 * t.columns) / kAttentionThreads;
  });
}

TEST(AttentionMmaTiles, SharedBytesAreCounted) {
  // Q 128 x 72, K and V twice 64 x 72 elements of two bytes.
  EXPECT_EQ(mma_forward_shared_bytes({64, 128, 64}), 2 * (128 * 72 + 4 * 64 * 72));
  // K and V 128 x 72, Q and dO twice 32 x 72.
  EXPECT_EQ(mma_backward_shared_bytes({64, 128, 32}), 2 * (2 * 128 * 72 + 4 * 32 * 72));
}

// The tiles that were tuned for: two blocks of each on a multiprocessor of 228 KiB, of which a
// block takes 1 KiB more than it asks for.
TEST(AttentionMmaTiles, TwoBlocksOnHopper) {
  constexpr int64_t kHalf = (228 << 10) / 2 - 1024;
  for (const int64_t D : {16, 32, 64, 80, 96, 128}) {
    const auto fits = [&](const auto& tiles, auto bytes) {
      return bytes(tiles[choose_tile(tiles, bytes, D, kHopperBytes)]) <= kHalf;
    };
    EXPECT_TRUE(fits(kMmaForwardTiles, mma_forward_shared_bytes)) << D;
    EXPECT_TRUE(fits(kMmaKeyTiles, mma_backward_shared_bytes)) << D;
    EXPECT_TRUE(fits(kMmaQueryTiles, mma_backward_shared_bytes)) << D;
  }
}

}  // namespace
}  // namespace quern::test
