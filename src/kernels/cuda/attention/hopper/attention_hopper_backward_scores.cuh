// The score warpgroups of Hopper's backward attention for heads of up to 128: S, P, dP and dS of 64
// keys each, dV and dK (docs/attention-backward.md).
#pragma once

#include <type_traits>

#include "kernels/cuda/attention/hopper/attention_hopper_backward_keys.cuh"

namespace quern::kernels::cuda {

// A score warpgroup's rows of dS^T are in shared memory.
using RowsStored = NamedBarriers<kScoreWarpgroups, kWarpgroupSize, PartsStored>;

// A warpgroup with 64 keys of each item: all products but dQ.
template <int kTile>
struct ScoreWarpgroup {
  using Tile = BackwardTile<kTile>;
  using Keys = typename Tile::Keys;
  using Queries = typename Tile::Queries;
  using Scores = typename Tile::Scores;
  static constexpr int kD = Tile::kD;
  static constexpr bool kAhead = Tile::kRoles == BackwardRoles::ahead;
  // Where S^T is computed ahead, registers suffice for these too.
  using Columns =
      std::conditional_t<kAhead, ColumnsInRegisters<kBackwardQueries / 8>, ColumnsInMemory>;

  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  const int warpgroup;
  // Without S^T ahead, the two warpgroups issue products in turn, twice a step.
  Turns<kScoreWarpgroups, !kAhead, RowsStored> turns{warpgroup};
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<Tile::kStages> ring;  // of Q and dO
  RingPlace<Tile::kScoreStages> ds_ring;
  VisibleKeys visible;
  int q_left = 0, ds_left = 0;  // stages of Q and dS^T whose dK is not computed yet
  float dk[kD / 2], dv[kD / 2];

  __device__ __forceinline__ void run() {
    turns.begin();
    while (true) {
      barriers.k.wait_full(keys);
      if (barriers.item(keys).key_tile < 0) break;
      compute();
      keys.advance();
    }
    turns.end();
  }

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int first_row() const { return warpgroup * kWarpgroupRows; }

  __device__ __forceinline__ void compute() {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.0f;
    const BackwardItem& item = barriers.item(keys);
    visible = VisibleKeys(item.key_tile * Tile::kKeys + first_row(), x);
    const int first_tile = min(first_tile_of<kTile>(warpgroup, item, x), x.plan.query_tiles);
    bool dk_left = false;
    barriers.v.wait_full(keys);
#pragma unroll 1
    for (int heads = item.end_head - item.first_head; heads > 0; --heads) {
      int tile = item.first_tile;
#pragma unroll 1
      for (; tile < first_tile; ++tile) skip();
      if (tile == x.plan.query_tiles) continue;
      if constexpr (kAhead) {
        walk_ahead(tile);
      } else {
        if (!dk_left) step<false>(tile++);
        dk_left = true;
#pragma unroll 1
        for (; tile < x.plan.query_tiles; ++tile) step<true>(tile);
      }
    }
    barriers.v.release(keys.stage, thread());
    barriers.k.release(keys.stage, thread());
    if (dk_left) {
      wgmma_fence();
      issue_dk();
      wgmma_wait<0>();
      finish_dk();
    }
    if (x.plan.parts > 1 && !add_parts<kTile>(barriers, x, item, warpgroup, dv, dk)) return;
    store_dv<kTile>(dv, x, item, first_row());
    store_dk<kTile>(dk, x, item, first_row());
  }

  // A tile of queries that see none of this warpgroup's keys.
  __device__ __forceinline__ void skip() {
    // Without waiting, the releases could count for the previous use.
    barriers.q.wait_full(ring);
    barriers.q.release(ring.stage, thread());
    barriers.d_o.wait_full(ring);
    barriers.d_o.release(ring.stage, thread());
    ring.advance();
    barriers.ds.wait_empty(ds_ring);
    publish_ds();
    for (int i = 0; i < 2; ++i) turns.wait(), turns.pass();
  }

  // S^T = K Q^T of the next tile
  __device__ __forceinline__ void issue_scores(ScoreSums& scores) {
    barriers.q.wait_full(ring);
    multiply_keys<kTile>(scores, tiles.k[keys.stage], first_row(), tiles.q[ring.stage]);
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void issue_dp(ScoreSums& dp) {
    barriers.d_o.wait_full(ring);
    multiply_keys<kTile>(dp, tiles.v[keys.stage], first_row(), tiles.d_o[ring.stage]);
  }
  // dV += P^T dO
  __device__ __forceinline__ void issue_dv(const ScoreWords& p, int stage) {
    add_product<Queries>(dv, p, Queries::mn_major(tiles.d_o[stage]));
    wgmma_commit();
  }
  // dK += dS^T Q of an earlier step, with dS^T from shared memory
  __device__ __forceinline__ void issue_dk() {
    add_product<Scores, Queries, kBackwardQueries>(
        dk, Scores::k_major(tiles.ds[ds_left], first_row()), Queries::mn_major(tiles.q[q_left]));
    wgmma_commit();
  }
  __device__ __forceinline__ void finish_dk() {
    settle(dk);
    barriers.q.release(q_left, thread());
  }

  __device__ __forceinline__ void store_ds(const ScoreWords& ds) {
    barriers.ds.wait_empty(ds_ring);
    store_scores<Scores>(tiles.ds[ds_ring.stage], first_row(), ds);
    fence_async_proxy();
  }
  // Announces this warpgroup's rows of dS^T to its own products and to dQ; a skipped step has none.
  // All of its warps have waited for the stage by then. Otherwise a slow warp could miss the end of
  // a phase.
  __device__ __forceinline__ void publish_ds() {
    RowsStored::sync(warpgroup);
    if (thread() % kWarpgroupSize == 0) barriers.ds.full[0][ds_ring.stage].arrive();
    ds_ring.advance();
  }

  // One tile of queries. dK of the previous tile overlaps exp, and dV of this one dS^T. No product
  // is in flight between steps; otherwise the compiler would serialize the products.
  template <bool kDkLeft>
  __device__ __forceinline__ void step(int tile) {
    const int stage = ring.stage;
    ScoreSums scores, dp;
    ScoreWords p, ds;
    turns.wait();
    issue_scores(scores);
    if constexpr (kDkLeft) issue_dk();
    turns.pass();
    wgmma_wait<kDkLeft ? 1 : 0>();
    settle(scores);
    visible.make_probabilities(p, scores, tile, x.scale_log2,
                               Columns{barriers.lse[stage] + fragment_of_thread().column});
    settle(p);
    turns.wait();
    issue_dp(dp);
    issue_dv(p, stage);
    turns.pass();
    if constexpr (kDkLeft) {
      wgmma_wait<2>();
      finish_dk();
    }
    wgmma_wait<1>();
    settle(dp);
    transposed_score_gradients(ds, p, dp,
                               Columns{barriers.delta[stage] + fragment_of_thread().column});
    store_ds(ds);
    q_left = stage;
    ds_left = ds_ring.stage;
    publish_ds();
    wgmma_wait<0>();
    settle(dv);
    settle(p);
    barriers.d_o.release(stage, thread());
    ring.advance();
  }

  // All tiles of one head from `tile` on, with S^T of the next one computed ahead.
  __device__ __forceinline__ void walk_ahead(int tile) {
    ScoreSums scores;
    issue_scores(scores);
    wgmma_wait<0>();
    settle(scores);
#pragma unroll 1
    for (; tile + 1 < x.plan.query_tiles; ++tile) step_ahead<true>(scores, tile);
    step_ahead<false>(scores, tile);
  }

  // exp overlaps dP^T; dS^T overlaps dV and S^T of the next tile.
  template <bool kHasNext>
  __device__ __forceinline__ void step_ahead(ScoreSums& scores, int tile) {
    const int stage = ring.stage;
    ScoreSums dp;
    ScoreWords p, ds;
    const Columns lse{barriers.lse[stage] + fragment_of_thread().column};
    issue_dp(dp);
    visible.make_probabilities(p, scores, tile, x.scale_log2, lse);
    settle(p);
    wgmma_fence();
    issue_dv(p, stage);
    const Columns delta{barriers.delta[stage] + fragment_of_thread().column};
    ring.advance();
    if constexpr (kHasNext) issue_scores(scores);
    wgmma_wait<kHasNext ? 2 : 1>();
    settle(dp);
    transposed_score_gradients(ds, p, dp, delta);
    settle(ds);
    store_ds(ds);
    wgmma_fence();
    add_product<Queries>(dk, ds, Queries::mn_major(tiles.q[stage]));
    wgmma_commit();
    publish_ds();
    wgmma_wait<0>();
    settle(dk);
    settle(dv);
    settle(p);
    settle(ds);
    settle(scores);
    barriers.q.release(stage, thread());
    barriers.d_o.release(stage, thread());
  }
};

}  // namespace quern::kernels::cuda
