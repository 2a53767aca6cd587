// The tile tables of the CUDA flash attention, checked without a GPU: every head_dim has a tile on
// a laptop's GPU, and the threads divide every tile.
#include "kernels/cuda/attention/attention_tiles.h"

#include "attention_tile_table.h"

namespace quern::test {
namespace {

using namespace kernels::cuda;

template <size_t N>
void check_table(const AttentionTile (&tiles)[N], int64_t (*bytes)(const AttentionTile&)) {
  check_tile_table(tiles, bytes, [](const AttentionTile& t) {
    EXPECT_EQ(t.head_dim % 32, 0);  // 8 threads of 4 features
    EXPECT_EQ(t.rows % 16, 0);      // 4 warps of 4 rows
    EXPECT_EQ(t.columns % 8, 0);    // 8 threads
  });
}

TEST(AttentionTiles, Forward) {
  check_table(kForwardTiles, forward_shared_bytes);
}

TEST(AttentionTiles, Backward) {
  check_table(kBackwardTiles, backward_shared_bytes);
}

TEST(AttentionTiles, SharedBytesAreCounted) {
  // Q 64 x 68, K and V 64 x 68, P 64 x 72 floats.
  EXPECT_EQ(forward_shared_bytes({64, 64, 64}), 4 * (3 * 64 * 68 + 64 * 72));
  // Q and dO 64 x 68, K and V 32 x 68, dS 64 x 40 floats.
  EXPECT_EQ(backward_shared_bytes({64, 64, 32}), 4 * (2 * 96 * 68 + 64 * 40));
}

}  // namespace
}  // namespace quern::test
