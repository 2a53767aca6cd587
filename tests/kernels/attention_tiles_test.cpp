// The tile tables of the CUDA flash attention, which need no GPU to be checked: every head_dim has
// a tile on a laptop's GPU, and the threads divide every tile.
#include "kernels/cuda/attention_tiles.h"

#include <gtest/gtest.h>

namespace quern::test {
namespace {

using namespace kernels::cuda;

constexpr int64_t kLaptopBytes = 99 << 10;   // sm_86, sm_89, sm_120
constexpr int64_t kHopperBytes = 227 << 10;  // sm_90

template <size_t N>
void check_table(const AttentionTile (&tiles)[N], int64_t (*bytes)(const AttentionTile&)) {
  int widest = 0;
  for (const AttentionTile& t : tiles) {
    SCOPED_TRACE(::testing::Message() << t.head_dim << " " << t.rows << " " << t.columns);
    EXPECT_GE(t.head_dim, widest);  // the first that is wide enough is taken
    widest = t.head_dim;
    EXPECT_EQ(t.head_dim % 32, 0);  // 8 threads of 4 features
    EXPECT_EQ(t.rows % 16, 0);      // 4 warps of 4 rows
    EXPECT_EQ(t.columns % 8, 0);    // 8 threads
    EXPECT_LE(bytes(t), kHopperBytes);
  }
  EXPECT_EQ(widest, 256);
  for (int64_t D = 8; D <= 256; D += 8) {
    for (const int64_t available : {kLaptopBytes, kHopperBytes}) {
      const AttentionTile& t = tiles[static_cast<size_t>(choose_tile(tiles, bytes, D, available))];
      EXPECT_GE(t.head_dim, D);
      EXPECT_LE(bytes(t), available) << "head_dim " << D;
    }
  }
  EXPECT_THROW(choose_tile(tiles, bytes, 264, kHopperBytes), Error);
  EXPECT_THROW(choose_tile(tiles, bytes, 256, 48 << 10), Error);
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
