// The tile tables of the portable tensor-core attention, checked without a GPU: every head_dim has
// a tile on a laptop's GPU, and fragments, warps and registers divide every tile.
#include "attention_tile_table.h"
#include "kernels/cuda/attention/mma/attention_mma.h"

namespace quern::test {
namespace {

using namespace kernels::cuda;

// A thread has 255 registers and needs about 60 for other values.
constexpr int kAccumulators = 192;

// Floats a thread: 128 threads hold a tile of rows by (features and scores).
TEST(AttentionMmaTiles, Forward) {
  check_tile_table(kMmaForwardTiles, mma_forward_shared_bytes, [](const AttentionTile& t) {
    EXPECT_EQ(t.head_dim % 16, 0);  // a step of mma
    EXPECT_EQ(t.rows % (kMmaWarps * kMmaRowsPerFragment), 0);
    EXPECT_EQ(t.columns % 16, 0);          // columns of the scores are a step of the next product
    EXPECT_EQ(mma_row_bytes(t) % 32, 16);  // an odd number of chunks: no bank conflicts
    EXPECT_LE(t.rows * (t.head_dim + t.columns) / kAttentionThreads, kAccumulators);
  });
}

TEST(AttentionMmaTiles, Backward) {
  check_tile_table(kMmaBackwardTiles, mma_backward_shared_bytes, [](const AttentionTile& t) {
    const int threads = mma_backward_threads(t), split = mma_backward_split(t);
    const int features = mma_backward_features(t), step = mma_backward_step(t);
    const int warp_keys = mma_backward_warp_keys(t);
    EXPECT_EQ(t.head_dim % 16, 0);
    EXPECT_EQ(t.head_dim % features, 0);
    EXPECT_EQ(features % (8 * split), 0);
    EXPECT_EQ(t.rows % warp_keys, 0);
    EXPECT_EQ(warp_keys % kMmaRowsPerFragment, 0);
    EXPECT_EQ(t.columns / split % step, 0);
    EXPECT_EQ(step % 16, 0);
    EXPECT_LE(t.columns, threads);         // one thread copies the statistics of one query
    EXPECT_EQ(mma_row_bytes(t) % 32, 16);  // an odd number of chunks: no bank conflicts
    // dK and dV, S and dP of a step.
    EXPECT_LE(warp_keys * 2 * (features / split + step) / 32, kAccumulators);
    EXPECT_LE(mma_backward_blocks(t) * threads, 65536 / 168);  // registers of a multiprocessor
  });
}

// The warps' parts cover a tile of dQ once.
TEST(AttentionMmaTiles, PartsOfDq) {
  for (const AttentionTile& t : kMmaBackwardTiles) {
    SCOPED_TRACE(::testing::Message() << t.head_dim << " " << t.rows << " " << t.columns);
    const MmaDqPart part = mma_dq_part(t);
    ASSERT_GT(part.queries, 0);
    EXPECT_EQ(part.queries % kMmaRowsPerFragment, 0);
    EXPECT_EQ(part.features % 8, 0);
    EXPECT_EQ(t.columns % part.queries, 0);
    EXPECT_EQ(mma_backward_features(t) % part.features, 0);
    EXPECT_EQ(part.queries * part.features * mma_backward_threads(t) / 32,
              t.columns * mma_backward_features(t));
  }
}

TEST(AttentionMmaTiles, SharedBytesAreCounted) {
  // Q 128 x 72, K and V twice 64 x 72 elements of two bytes.
  EXPECT_EQ(mma_forward_shared_bytes({64, 128, 64}), 2 * (128 * 72 + 4 * 64 * 72));
  // K and V 128 x 72, Q and dO twice 32 x 72; two floats a query twice; dS twice 128 x 40.
  EXPECT_EQ(mma_backward_shared_bytes({64, 128, 32}),
            2 * (2 * 128 * 72 + 4 * 32 * 72) + 2 * 32 * 8 + 2 * 2 * 128 * 40);
  // K and V 128 x 136; three times Q and dO 64 x 136 and two floats a query; dS twice and P 128 x
  // 72.
  EXPECT_EQ(mma_backward_shared_bytes({128, 128, 64}),
            2 * (2 * 128 * 136 + 3 * 2 * 64 * 136) + 3 * 64 * 8 + 3 * 2 * 128 * 72);
}

// The tuned tiles: as many blocks as registers allow on a multiprocessor of 228 KiB. Each block
// takes 1 KiB beyond its request.
TEST(AttentionMmaTiles, BlocksOnHopper) {
  constexpr int64_t kAll = 228 << 10;
  for (const int64_t D : {16, 32, 64, 80, 96, 128}) {
    const auto check = [&](const auto& tiles, auto bytes, auto blocks) {
      const AttentionTile& t = tiles[choose_tile(tiles, bytes, D, kHopperBytes)];
      EXPECT_LE(blocks(t) * (bytes(t) + 1024), kAll) << D;
    };
    check(kMmaForwardTiles, mma_forward_shared_bytes, mma_forward_blocks);
    check(kMmaBackwardTiles, mma_backward_shared_bytes, mma_backward_blocks);
  }
}

}  // namespace
}  // namespace quern::test
