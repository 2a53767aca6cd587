// Checks for every tile table of the attention kernels: the widths ascend to 256, and every
// head_dim has a tile on a laptop's GPU and on a data centre's.
#pragma once

#include <gtest/gtest.h>

#include "kernels/cuda/attention/attention_tiles.h"

namespace quern::test {

inline constexpr int64_t kLaptopBytes = 99 << 10;   // sm_86, sm_89, sm_120
inline constexpr int64_t kHopperBytes = 227 << 10;  // sm_90

// check_tile checks the kernel's requirements on a single tile.
template <size_t N, class CheckTile>
void check_tile_table(const kernels::cuda::AttentionTile (&tiles)[N],
                      int64_t (*bytes)(const kernels::cuda::AttentionTile&), CheckTile check_tile) {
  using namespace kernels::cuda;
  int widest = 0;
  for (const AttentionTile& t : tiles) {
    SCOPED_TRACE(::testing::Message() << t.head_dim << " " << t.rows << " " << t.columns);
    EXPECT_GE(t.head_dim, widest);  // the first that is wide enough is taken
    widest = t.head_dim;
    EXPECT_LE(bytes(t), kHopperBytes);
    check_tile(t);
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

}  // namespace quern::test
