// The score warpgroups of Hopper's backward attention for heads of 192 and 256. dK and dV of 64
// keys together exceed the registers of a warpgroup, so each warpgroup computes one of them, for
// the same keys (docs/attention-backward.md).
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper_backward_keys.cuh"

namespace quern::kernels::cuda {

enum class BackwardResult { values, keys };

// values: S^T = K Q^T, P^T, and dV += P^T dO. keys: dP^T = V dO^T, dS^T, and dK += dS^T Q. P^T goes
// from the first warpgroup to the second, and dS^T in its place to the one that computes dQ,
// through shared memory.
template <int kTile, BackwardResult kResult>
struct ResultWarpgroup {
  using Tile = BackwardTile<kTile>;
  using Queries = typename Tile::Queries;
  using Scores = typename Tile::Scores;
  using QueryPlace = RingPlace<Tile::kStages>;
  static constexpr bool kOfKeys = kResult == BackwardResult::keys;
  static constexpr int kWarpgroup = kOfKeys ? 1 : 0;
  // Of one product: ptxas wants its registers below those at launch, 128 a thread.
  static constexpr int kColumns = Tile::kD > 192 ? Tile::kD / 2 : Tile::kD;

  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  RingPlace<Tile::kKeyStages> keys;
  QueryPlace ahead, behind;  // of the tiles of the first and of the second product
  RingPlace<Tile::kScoreStages> words_ring;
  VisibleKeys visible;
  float sum[Tile::kD / 2];  // dV or dK

  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }

  __device__ __forceinline__ void run() {
    while (true) {
      barriers.k.wait_full(keys);
      if (barriers.item[keys.stage] < 0) return;
      compute();
      keys.advance();
    }
  }

  __device__ __forceinline__ void compute() {
#pragma unroll
    for (float& s : sum) s = 0.0f;
    const BackwardItem item = item_of<kTile>(barriers, keys.stage, x);
    visible = VisibleKeys(item.key_tile * Tile::kKeys, x);
    if constexpr (kOfKeys) barriers.v.wait_full(keys);
    const int first_tile = item.first_tile;  // a copy, so that `item` takes no registers
#pragma unroll 1
    for (int heads = item.end_head - item.first_head; heads > 0; --heads) walk(first_tile);
    const BackwardItem done = item_of<kTile>(barriers, keys.stage, x);
    if constexpr (kOfKeys) barriers.v.release(keys.stage, thread());
    barriers.k.release(keys.stage, thread());
    if (x.plan.parts > 1 && !add_parts<kTile>(barriers, x, done, kWarpgroup, sum)) return;
    if constexpr (kOfKeys) {
      store_keys<kTile>(sum, x, done, 0);
    } else {
      store_values<kTile>(sum, x, done, 0);
    }
  }

  // All tiles of queries of one head. A warpgroup does nothing beside its own products: those of
  // the other warpgroups fill the time of its words.
  __device__ __forceinline__ void walk(int tile) {
    ScoreSums scores;
    ScoreWords words;
    multiply_first(scores);
    wgmma_wait<0>();
    settle(scores);
    make_words(words, scores, tile);
#pragma unroll 1
    for (; tile + 1 < x.plan.query_tiles; ++tile) {
      settle(words);
      wgmma_fence();
      multiply_second(words);
      multiply_first(scores);
      wgmma_wait<1>();
      settle(sum);
      settle(words);
      release_second();
      wgmma_wait<0>();
      settle(scores);
      make_words(words, scores, tile + 1);
    }
    settle(words);
    wgmma_fence();
    multiply_second(words);
    wgmma_wait<0>();
    settle(sum);
    settle(words);
    release_second();
  }

  __device__ __forceinline__ void multiply_first(ScoreSums& scores) {
    if constexpr (kOfKeys) {
      barriers.d_o.wait_full(ahead);
      multiply_keys<kTile>(scores, tiles.v[keys.stage], 0, tiles.d_o[ahead.stage]);
    } else {
      barriers.q.wait_full(ahead);
      multiply_keys<kTile>(scores, tiles.k[keys.stage], 0, tiles.q[ahead.stage]);
    }
  }

  __device__ __forceinline__ void multiply_second(const ScoreWords& words) {
    if constexpr (!kOfKeys) barriers.d_o.wait_full(behind);
    const uint8_t* const b = kOfKeys ? tiles.q[behind.stage] : tiles.d_o[behind.stage];
#pragma unroll
    for (int i = 0; i < Tile::kD; i += kColumns) {
      add_product<Queries>(reinterpret_cast<float(&)[kColumns / 2]>(sum[i / 2]), words,
                           Queries::mn_major(b, i));
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void release_second() {
    (kOfKeys ? barriers.q : barriers.d_o).release(behind.stage, thread());
    behind.advance();
  }

  // P^T or dS^T of the tile of the first product, also in shared memory.
  __device__ __forceinline__ void make_words(ScoreWords& words, const ScoreSums& scores, int tile) {
    const int stage = words_ring.stage;
    if constexpr (kOfKeys) {
      barriers.d_o.release(ahead.stage, thread());
      barriers.q.wait_full(ahead);  // for delta
      ScoreWords p;
      barriers.p_full[stage].wait(words_ring.parity);
      load_scores<Scores>(p, tiles.ds[stage]);
      transposed_score_gradients(
          words, p, scores,
          ColumnsInMemory{barriers.delta[ahead.stage] + fragment_of_thread().column});
    } else {
      visible.make_probabilities(
          words, scores, tile, x.scale_log2,
          ColumnsInMemory{barriers.lse[ahead.stage] + fragment_of_thread().column});
      barriers.q.release(ahead.stage, thread());
      barriers.ds.wait_empty(words_ring);
    }
    store_scores<Scores>(tiles.ds[stage], 0, words);
    if constexpr (kOfKeys) fence_async_proxy();
    __syncwarp();
    if (thread() % kWarpSize == 0) {
      (kOfKeys ? barriers.ds.full[0][stage] : barriers.p_full[stage]).arrive();
    }
    words_ring.advance();
    ahead.advance();
  }
};

}  // namespace quern::kernels::cuda
