// The score warpgroups of Hopper's backward attention: S, P, dP and dS of 64 keys each, dV and dK
// (docs/attention-backward.md).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_key_sums.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"

namespace quern::kernels::cuda {

// A score warpgroup's dK and dV are in scratch memory.
using PartsStored = NamedBarriers<kScoreWarpgroups, kWarpgroupSize>;
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
  using ScoreSums = float[kBackwardQueries / 2];          // 64 keys by the queries of a tile
  using ScoreWords = uint32_t[kBackwardQueries / 16][4];  // the same in BF16
  // Where S^T is computed ahead, registers suffice for these too.
  using Columns = std::conditional_t<Tile::kScoresAhead, ColumnsInRegisters<kBackwardQueries / 8>,
                                     ColumnsInMemory>;

  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  const int warpgroup;
  // Without S^T ahead, the two warpgroups issue products in turn, twice a step.
  Turns<kScoreWarpgroups, !Tile::kScoresAhead, RowsStored> turns{warpgroup};
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<Tile::kStages> ring;  // of Q and dO
  RingPlace<2> ds_ring;
  int first_query = 0, keys_left = 0;  // the first query that sees the first key; keys from it on
  int q_left = 0, ds_left = 0;         // stages of Q and dS^T whose dK is not computed yet
  float dk[kD / 2], dv[kD / 2];

  __device__ __forceinline__ void run() {
    turns.begin();
    while (true) {
      barriers.k.wait_full(keys);
      if (barriers.item[keys.stage] < 0) break;
      compute();
      keys.advance();
    }
    turns.end();
  }

  // Computed at each use: what the compiler keeps from step to step costs registers.
  __device__ __forceinline__ BackwardItem item() const {
    const volatile int& index = barriers.item[keys.stage];
    return BackwardItem(index, x.plan, static_cast<int>(x.s.Hk));
  }
  __device__ __forceinline__ FragmentPlace fragment() const {
    return FragmentPlace(opaque(thread()) % kWarpgroupSize);
  }

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int first_row() const { return warpgroup * kWarpgroupRows; }

  __device__ __forceinline__ void compute() {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.0f;
    const BackwardItem it = item();
    const int k0 = it.key_tile * kBackwardKeys + first_row();
    first_query = k0 - x.plan.diagonal;
    keys_left = static_cast<int>(x.s.Tk) - k0;
    const int first_tile = min(first_tile_of(warpgroup, it, x), x.plan.query_tiles);
    const int first_of_item = it.first_tile;  // a copy, so that `it` takes no registers
    bool dk_left = false;
    barriers.v.wait_full(keys);
#pragma unroll 1
    for (int heads = it.end_head - it.first_head; heads > 0; --heads) {
      int tile = first_of_item;
#pragma unroll 1
      for (; tile < first_tile; ++tile) skip();
      if (tile == x.plan.query_tiles) continue;
      if constexpr (Tile::kScoresAhead) {
        walk_ahead(tile);
      } else {
        if (!dk_left) step<false>(tile++);
        dk_left = true;
#pragma unroll 1
        for (; tile < x.plan.query_tiles; ++tile) step<true>(tile);
      }
    }
    const BackwardItem done = item();
    barriers.v.release(keys.stage, thread());
    barriers.k.release(keys.stage, thread());
    if (dk_left) {
      wgmma_fence();
      issue_dk();
      wgmma_wait<0>();
      finish_dk();
    }
    if (x.plan.parts == 1 || add_parts(done)) store_keys(done);
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
    multiply_keys(scores, tiles.k[keys.stage], tiles.q[ring.stage]);
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void issue_dp(ScoreSums& dp) {
    barriers.d_o.wait_full(ring);
    multiply_keys(dp, tiles.v[keys.stage], tiles.d_o[ring.stage]);
  }
  // d = A B^T for this warpgroup's rows of K or V, and a tile of queries.
  __device__ __forceinline__ void multiply_keys(ScoreSums& d, const uint8_t* a, const uint8_t* b) {
    forget(d);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(d, Keys::k_major(a, first_row()), Queries::k_major(b));
    wgmma_commit();
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
    store_score_gradients<Scores>(tiles.ds[ds_ring.stage], first_row(), ds);
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
    make_probabilities(p, scores, tile, Columns{barriers.lse[stage] + fragment().column});
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
    transposed_score_gradients(ds, p, dp, Columns{barriers.delta[stage] + fragment().column});
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
    const Columns lse{barriers.lse[stage] + fragment().column};
    issue_dp(dp);
    make_probabilities(p, scores, tile, lse);
    settle(p);
    wgmma_fence();
    issue_dv(p, stage);
    const Columns delta{barriers.delta[stage] + fragment().column};
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

  // P^T of rows beyond Tk must be 0 too, since they add to dQ.
  __device__ __forceinline__ void make_probabilities(ScoreWords& p, const ScoreSums& scores,
                                                     int tile, const Columns& lse) const {
    const int q0 = tile * kBackwardQueries;
    const bool masked = q0 < first_query + kWarpgroupRows - 1 || keys_left < kWarpgroupRows;
    if (masked) {
      const FragmentPlace place = fragment();
      int first[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = place.row + 8 * r;
        first[r] = row < keys_left ? first_query + row - place.column - q0 : kBackwardQueries;
      }
      transposed_probabilities<true>(p, scores, x.scale_log2, lse, first);
    } else {
      transposed_probabilities<false>(p, scores, x.scale_log2, lse, {0, 0});
    }
  }

  // Stores dK and dV of the item to scratch. With the last part, sums all parts and returns true.
  __device__ __forceinline__ bool add_parts(const BackwardItem& item) {
    constexpr int kPart = kWarpgroupRows * kD / 4;  // float4 of dV; as many of dK
    const int64_t head = item.b * x.s.Hk + item.kv_head;
    const int64_t place = (head * x.plan.key_tiles + item.key_tile) * kScoreWarpgroups + warpgroup;
    float4* const first =
        reinterpret_cast<float4*>(x.scratch.dkv) + place * x.plan.parts * 2 * kPart;
    store_part(first + item.part * 2 * kPart, dv);
    store_part(first + item.part * 2 * kPart + kPart, dk);
    const bool last =
        is_last_part(x.scratch.key_parts + place, x.plan.parts, barriers.parts_arrived[warpgroup],
                     [&] { PartsStored::sync(warpgroup); });
    if (!last) return false;
    sum_parts(dv, first, x.plan.parts, 2 * kPart);
    sum_parts(dk, first + kPart, x.plan.parts, 2 * kPart);
    return true;
  }

  __device__ __forceinline__ void store_keys(const BackwardItem& item) {
    const int k0 = item.key_tile * kBackwardKeys + first_row();
    const FragmentPlace place = fragment();
    const auto tokens = static_cast<int>(x.s.Tk);
    store_fragment(at(x.dv, x.s.dv_strides, item.b, k0, item.kv_head), x.s.dv_strides[1],
                   tokens - k0, dv, 1.0f, place);
    rotate_back<kD, kD / 16>(dk, dk + kD / 4, x.rotary, k0 + place.row, tokens, place.column);
    store_fragment(at(x.dk, x.s.dk_strides, item.b, k0, item.kv_head), x.s.dk_strides[1],
                   tokens - k0, dk, static_cast<float>(x.s.scale), place);
  }
};

}  // namespace quern::kernels::cuda
