// The warpgroup of Hopper's backward attention that computes dQ (docs/attention-backward.md).
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"

namespace quern::kernels::cuda {

// The warpgroup that computes dQ of every tile from all keys of the block. It passes dQ to
// add_in_turn, or adds dQ itself when add_in_turn signals its turn.
template <int kTile>
struct DqWarpgroup {
  using Tile = BackwardTile<kTile>;
  using Keys = typename Tile::Keys;
  using Scores = typename Tile::Scores;
  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<Tile::kScoreStages> ds;
  RingPlace<1> dq_ring;
  int buffer = 0;

  __device__ __forceinline__ void run() {
    while (true) {
      barriers.k.wait_full(keys);
      const BackwardItem item = barriers.item(keys);
      if (item.key_tile < 0) return;
      // From this tile on, queries see keys of all score warpgroups.
      const int all_keys = first_tile_of<kTile>(Tile::kKeys / kWarpgroupRows - 1, item, x);
#pragma unroll 1
      for (int h = item.first_head; h < item.end_head; ++h) {
        const int64_t head = (item.b * x.s.H + h) * x.plan.query_tiles;
#pragma unroll 1
        for (int tile = item.first_tile; tile < x.plan.query_tiles; ++tile) {
          const DqSum sum = sum_of(item, head, tile);
          if (Tile::kKeys > kWarpgroupRows && tile < all_keys) {
            step<kWarpgroupRows>(sum);
          } else {
            step<Tile::kKeys>(sum);
          }
        }
      }
      barriers.k.release(keys.stage, static_cast<int>(threadIdx.x));
      keys.advance();
    }
  }

  // Where a direct contribution goes.
  struct DqSum {
    float4* sum;
    bool add;  // not the first one
  };
  __device__ __forceinline__ DqSum sum_of(const BackwardItem& item, int64_t head, int tile) const {
    if constexpr (Tile::kDqDirect) {
      float* const sum = x.scratch.dq + (head + tile) * (kBackwardQueries * Tile::kD);
      return {reinterpret_cast<float4*>(sum), x.plan.before(item.key_tile, tile, item.order) > 0};
    } else {
      return {};
    }
  }

  // One tile, from the first kKeys keys.
  template <int kKeys>
  __device__ __forceinline__ void step(const DqSum& sum) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
    barriers.ds.wait_full(ds);
#pragma unroll
    for (int first = 0; first < Tile::kD; first += Tile::kDqColumns) {
      float dq[Tile::kDqColumns / 2];
      forget(dq);
      wgmma_fence();
      multiply_columns<Scores, Keys, kKeys>(dq, Scores::mn_major(tiles.ds[ds.stage]),
                                            Keys::mn_major(tiles.k[keys.stage], first));
      wgmma_commit();
      wgmma_wait<0>();
      settle(dq);
      if (first + Tile::kDqColumns == Tile::kD) barriers.ds.release(ds.stage, thread);
      if constexpr (Tile::kDqDirect) {
        if (first == 0) barriers.dq[buffer].wait_full(dq_ring);
        add_fragment(sum.sum + first * (kBackwardQueries / 4), dq, sum.add);
      } else {
        hand_over(dq, thread);
      }
    }
    if constexpr (Tile::kDqDirect) {
      __syncwarp();
      barriers.dq[buffer].release(0, thread);
      next_buffer();
    }
    ds.advance();
  }

  // Fills a buffer.
  __device__ __forceinline__ void hand_over(const float (&dq)[Tile::kDqColumns / 2], int thread) {
    barriers.dq[buffer].wait_empty(dq_ring);
    store_fours(dq, [&](int i, const float4& four) { tiles.dq[buffer][i + thread] = four; });
    fence_async_proxy();
    __syncwarp();
    if (thread % kWarpSize == 0) barriers.dq[buffer].full[0][0].arrive();
    next_buffer();
  }
  __device__ __forceinline__ void next_buffer() {
    buffer ^= 1;
    if (buffer == 0) dq_ring.advance();
  }
};

}  // namespace quern::kernels::cuda
