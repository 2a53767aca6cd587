// The score warpgroups of Hopper's backward attention for heads of 192 and 256. dK and dV of 64
// keys together exceed the registers of a warpgroup, so each warpgroup computes one of them, for
// the same keys (docs/attention-backward.md).
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper_backward_keys.cuh"

namespace quern::kernels::cuda {

enum class BackwardResult { dv, dk };

// dv: S^T = K Q^T, P^T, and dV += P^T dO. dk: dP^T = V dO^T, dS^T, and dK += dS^T Q. P^T goes
// through shared memory from the first warpgroup to the second, and dS^T, in the place of P^T, to
// the warpgroup for dQ.
template <int kTile, BackwardResult kResult>
struct ResultWarpgroup {
  using Tile = BackwardTile<kTile>;
  using Queries = typename Tile::Queries;
  using Scores = typename Tile::Scores;
  using QueryPlace = RingPlace<Tile::kStages>;
  static constexpr bool kDk = kResult == BackwardResult::dk;
  static constexpr int kWarpgroup = kDk ? 1 : 0;
  // Columns of one product. ptxas requires its registers to be fewer than the launch's 128.
  static constexpr int kColumns = Tile::kD > 192 ? Tile::kD / 2 : Tile::kD;

  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  RingPlace<Tile::kKeyStages> keys;
  QueryPlace ahead, behind;  // of the tiles of the first and of the second product
  RingPlace<Tile::kScoreStages> scores_ring;
  VisibleKeys visible;
  float sum[Tile::kD / 2];  // dV or dK

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void run() {
    while (true) {
      barriers.k.wait_full(keys);
      if (barriers.item(keys).key_tile < 0) return;
      compute();
      keys.advance();
    }
  }

  __device__ __forceinline__ void compute() {
#pragma unroll
    for (float& s : sum) s = 0.0f;
    const BackwardItem& item = barriers.item(keys);
    if constexpr (kDk) {
      barriers.v.wait_full(keys);
    } else {
      visible = VisibleKeys(item.key_tile * Tile::kKeys, x);
    }
#pragma unroll 1
    for (int heads = item.end_head - item.first_head; heads > 0; --heads) walk(item.first_tile);
    if constexpr (kDk) barriers.v.release(keys.stage, thread());
    barriers.k.release(keys.stage, thread());
    if (x.plan.parts > 1 && !add_parts<kTile>(barriers, x, item, kWarpgroup, sum)) return;
    if constexpr (kDk) {
      store_dk<kTile>(sum, x, item, 0);
    } else {
      store_dv<kTile>(sum, x, item, 0);
    }
  }

  // All tiles of queries of one head. A warpgroup computes nothing beside its own products. While
  // it makes an operand, the other warpgroups multiply.
  __device__ __forceinline__ void walk(int tile) {
    ScoreSums scores;
    ScoreWords operand;
    multiply_first(scores);
    wgmma_wait<0>();
    settle(scores);
    make_operand(operand, scores, tile);
#pragma unroll 1
    for (; tile + 1 < x.plan.query_tiles; ++tile) {
      settle(operand);
      wgmma_fence();
      multiply_second(operand);
      multiply_first(scores);
      wgmma_wait<1>();
      settle(sum);
      settle(operand);
      release_second();
      wgmma_wait<0>();
      settle(scores);
      make_operand(operand, scores, tile + 1);
    }
    settle(operand);
    wgmma_fence();
    multiply_second(operand);
    wgmma_wait<0>();
    settle(sum);
    settle(operand);
    release_second();
  }

  __device__ __forceinline__ void multiply_first(ScoreSums& scores) {
    if constexpr (kDk) {
      barriers.d_o.wait_full(ahead);
      multiply_keys<kTile>(scores, tiles.v[keys.stage], 0, tiles.d_o[ahead.stage]);
    } else {
      barriers.q.wait_full(ahead);
      multiply_keys<kTile>(scores, tiles.k[keys.stage], 0, tiles.q[ahead.stage]);
    }
  }

  __device__ __forceinline__ void multiply_second(const ScoreWords& operand) {
    if constexpr (!kDk) barriers.d_o.wait_full(behind);
    const uint8_t* const b = kDk ? tiles.q[behind.stage] : tiles.d_o[behind.stage];
#pragma unroll
    for (int i = 0; i < Tile::kD; i += kColumns) {
      add_product<Queries>(reinterpret_cast<float(&)[kColumns / 2]>(sum[i / 2]), operand,
                           Queries::mn_major(b, i));
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void release_second() {
    (kDk ? barriers.q : barriers.d_o).release(behind.stage, thread());
    behind.advance();
  }

  // P^T or dS^T of the tile of the first product: the second one's operand, also in shared memory.
  __device__ __forceinline__ void make_operand(ScoreWords& operand, const ScoreSums& scores,
                                               int tile) {
    const int stage = scores_ring.stage;
    if constexpr (kDk) {
      barriers.d_o.release(ahead.stage, thread());
      barriers.q.wait_full(ahead);  // for delta
      ScoreWords p;
      barriers.p_full[stage].wait(scores_ring.parity);
      load_scores<Scores>(p, tiles.ds[stage]);
      transposed_score_gradients(
          operand, p, scores,
          ColumnsInMemory{barriers.delta[ahead.stage] + fragment_of_thread().column});
    } else {
      visible.make_probabilities(
          operand, scores, tile, x.scale_log2,
          ColumnsInMemory{barriers.lse[ahead.stage] + fragment_of_thread().column});
      barriers.q.release(ahead.stage, thread());
      barriers.ds.wait_empty(scores_ring);
    }
    store_scores<Scores>(tiles.ds[stage], 0, operand);
    if constexpr (kDk) fence_async_proxy();
    __syncwarp();
    if (thread() % kWarpSize == 0) {
      (kDk ? barriers.ds.full[0][stage] : barriers.p_full[stage]).arrive();
    }
    scores_ring.advance();
    ahead.advance();
  }
};

}  // namespace quern::kernels::cuda
