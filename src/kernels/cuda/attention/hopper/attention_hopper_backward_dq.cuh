// The warpgroup of Hopper's backward attention that computes dQ (docs/attention-backward.md).
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"

namespace quern::kernels::cuda {

// The warpgroup that computes dQ of every tile from all keys of the block, and hands it to
// add_sums.
template <int kTile>
struct DqWarpgroup {
  using Tile = BackwardTile<kTile>;
  using Keys = typename Tile::Keys;
  using Scores = typename Tile::Scores;
  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<2> ds;
  RingPlace<1> dq_ring;
  int buffer = 0;

  __device__ __forceinline__ void run() {
    while (true) {
      barriers.k.wait_full(keys);
      const int index = barriers.item[keys.stage];
      if (index < 0) return;
      const BackwardItem item(index, x.plan, static_cast<int>(x.s.Hk));
      const int all_keys = first_tile_of(kScoreWarpgroups - 1, item, x);  // from this tile on
#pragma unroll 1
      for (int h = item.first_head; h < item.end_head; ++h) {
#pragma unroll 1
        for (int tile = item.first_tile; tile < x.plan.query_tiles; ++tile) {
          tile < all_keys ? step<kWarpgroupRows>() : step<kBackwardKeys>();
        }
      }
      barriers.k.release(keys.stage, static_cast<int>(threadIdx.x));
      keys.advance();
    }
  }

  // One tile, from the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void step() {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
    barriers.ds.wait_full(ds);
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part) {
      float dq[Tile::kDqColumns / 2];
      forget(dq);
      wgmma_fence();
      multiply_columns<Scores, Keys, kKeys>(
          dq, Scores::mn_major(tiles.ds[ds.stage]),
          Keys::mn_major(tiles.k[keys.stage], part * Tile::kDqColumns));
      wgmma_commit();
      wgmma_wait<0>();
      settle(dq);
      if (part + 1 == Tile::kParts) barriers.ds.release(ds.stage, thread);
      barriers.dq[buffer].wait_empty(dq_ring);
      store_fours(dq, [&](int i, const float4& four) { tiles.dq[buffer][i + thread] = four; });
      fence_async_proxy();
      __syncwarp();
      if (thread % kWarpSize == 0) barriers.dq[buffer].full[0][0].arrive();
      buffer ^= 1;
      if (buffer == 0) dq_ring.advance();
    }
    ds.advance();
  }
};

}  // namespace quern::kernels::cuda
