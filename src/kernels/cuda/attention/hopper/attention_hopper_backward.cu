// Flash attention for Hopper, backward: dQ (B, Tq, H, D), dK and dV (B, Tk, Hk, D). One kernel does
// the products, transposed. One before it computes delta, one after it makes dQ from sums.
//   S^T = K Q^T,  P^T = exp2(S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K.
// A block owns a tile of keys and walks over the queries of the heads that share it. P^T goes from
// registers straight into the next product. dS^T goes to shared memory, from where a warpgroup of
// its own computes dQ, to which many blocks add (attention_hopper_query_sums.cuh). Bound by the
// tensor cores, 10 Tq Tk D operations a head, half of that when causal, and by the power they take.
#include <type_traits>

#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_key_sums.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"
#include "kernels/cuda/primitives/tma.cuh"

namespace quern::kernels::cuda {

namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

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

  // Zeros, so that the compiler does not keep old sums. The next product overwrites them.
  __device__ __forceinline__ static void forget(ScoreSums& sums) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    settle(sums);
  }

  __device__ __forceinline__ void compute() {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.0f;
    const BackwardItem it = item();
    const int k0 = it.key_tile * kBackwardKeys + first_row();
    first_query = k0 - x.plan.diagonal;
    keys_left = static_cast<int>(x.s.Tk) - k0;
    const int first_tile = min(first_tile_of(warpgroup, it, x), x.plan.query_tiles);
    const int tile_of_item = it.first_tile;
    bool dk_left = false;
    barriers.v.wait_full(keys);
#pragma unroll 1
    for (int heads = it.end_head - it.first_head; heads > 0; --heads) {
      int tile = tile_of_item;
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
    barriers.q.wait_full(ring);  // else the release could count for the previous use
    barriers.q.release(ring.stage, thread());
    barriers.d_o.wait_full(ring);
    barriers.d_o.release(ring.stage, thread());
    ring.advance();
    barriers.ds.wait_empty(ds_ring);
    publish_ds();
    for (int i = 0; i < 2; ++i) {
      turns.wait();
      turns.pass();
    }
  }

  // S^T = K Q^T of the next tile
  __device__ __forceinline__ void issue_scores(ScoreSums& scores) {
    barriers.q.wait_full(ring);
    forget(scores);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(scores, Keys::k_major(tiles.k[keys.stage], first_row()),
                                     Queries::k_major(tiles.q[ring.stage]));
    wgmma_commit();
  }
  // dP^T = V dO^T
  __device__ __forceinline__ void issue_dp(ScoreSums& dp) {
    barriers.d_o.wait_full(ring);
    forget(dp);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(dp, Keys::k_major(tiles.v[keys.stage], first_row()),
                                     Queries::k_major(tiles.d_o[ring.stage]));
    wgmma_commit();
  }
  // dV += P^T dO
  __device__ __forceinline__ void issue_dv(const ScoreWords& p, int stage) {
    add_product<Queries>(dv, p, Queries::mn_major(tiles.d_o[stage]));
    wgmma_commit();
  }
  // dK += dS^T Q of an earlier step, with dS^T from shared memory
  __device__ __forceinline__ void issue_dk() {
    const uint64_t rows = Scores::k_major(tiles.ds[ds_left], first_row());
    const uint64_t queries = Queries::mn_major(tiles.q[q_left]);
#pragma unroll
    for (int i = 0; i < kBackwardQueries / kWgmmaDepth; ++i) {
      wgmma<Major::kK, Major::kMN>(dk, rows + Scores::k_step(i), queries + Queries::mn_step(i),
                                   true);
    }
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
  // Hands this warpgroup's rows of dS^T, if it has any, to its own products and to dQ. All of its
  // warps have waited for the stage: else a slow one could miss the end of a phase.
  __device__ __forceinline__ void publish_ds() {
    RowsStored::sync(warpgroup);
    if (thread() % kWarpgroupSize == 0) barriers.ds.full[0][ds_ring.stage].arrive();
    ds_ring.advance();
  }

  // One tile of queries. dK of the previous tile overlaps exp, and dV of this one dS^T. The other
  // warpgroups multiply while this one computes. No product is in flight between steps; otherwise
  // the compiler would serialize the products.
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
    if (last) {
      sum_parts(dv, first, x.plan.parts, 2 * kPart);
      sum_parts(dk, first + kPart, x.plan.parts, 2 * kPart);
    }
    return last;
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
#pragma unroll
      for (float& sum : dq) sum = 0.0f;  // see ScoreWarpgroup::forget
      settle(dq);
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

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kTile>
__global__ void __launch_bounds__(kBackwardWarpgroups* kWarpgroupSize, 1)
    hopper_attention_backward_kernel(const __grid_constant__ BackwardArguments x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = BackwardTile<kTile>;
  extern __shared__ uint8_t hopper_tiles[];
  __shared__ typename Tile::Barriers barriers;
  auto& tiles = *reinterpret_cast<typename Tile::Tiles*>(align_tiles(hopper_tiles));
  const int thread = static_cast<int>(threadIdx.x), warpgroup = start_block(barriers);
  if (warpgroup == 0) {
    give_registers<Tile::kCopyRegisters>();
    const int warp = __shfl_sync(~0u, thread / kWarpSize, 0);
    if (warp == 0) {
      load_items<kTile>(tiles, barriers, x);
    } else if (warp <= Tile::kDqBuffers && thread % kWarpSize == 0) {
      add_sums<kTile>(tiles, barriers, x, warp - 1);
    }
  } else if (warpgroup <= kScoreWarpgroups) {
    take_registers<Tile::kScoreRegisters>();
    ScoreWarpgroup<kTile> scores{tiles, barriers, x, warpgroup - 1};
    scores.run();
  } else {
    give_registers<Tile::kDqRegisters>();
    DqWarpgroup<kTile> gradients{tiles, barriers, x};
    gradients.run();
  }
#endif
}

// Runs first: computes delta, 4 threads a row of dO and O, and sets all counters to 0.
template <int kD>
__global__ void __launch_bounds__(256)
    hopper_attention_delta_kernel(const __grid_constant__ BackwardScratch scratch, int64_t counters,
                                  const bfloat16* d_o, const bfloat16* o,
                                  const __grid_constant__ AttentionShape s, bool o_vectors) {
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (thread < counters) scratch.turns[thread] = 0;
  const int64_t row = thread / 4;
  const bool exists = row < s.B * s.Tq * s.H;
  const int64_t h = row % s.H, t = row / s.H % s.Tq, b = row / s.H / s.Tq;
  float sum = 0.0f;
  if (exists) {
    sum = part_of_delta<kD>(at(d_o, s.do_strides, b, t, h), at(o, s.o_strides, b, t, h), o_vectors);
  }
  sum = quad_sum(sum);
  if (exists && threadIdx.x % 4 == 0) scratch.delta[(b * s.H + h) * s.Tq + t] = sum;
}

constexpr int kGradientHeads = 4;

// Runs last: dQ from its sums, 0 where a query sees no key. A block has a tile of queries, a
// warpgroup one head of it, so that heads share the tile's rows of the rotary tables.
template <int kD>
__global__ void __launch_bounds__(kGradientHeads* kWarpgroupSize, 2)
    hopper_attention_query_gradients_kernel(const __grid_constant__ BackwardArguments x) {
  const int64_t tile = blockIdx.x % x.plan.query_tiles, b = blockIdx.x / x.plan.query_tiles;
  const int64_t h = int64_t{blockIdx.y} * kGradientHeads + threadIdx.x / kWarpgroupSize;
  if (h >= x.s.H) return;
  const auto token = static_cast<int>(tile) * kBackwardQueries;
  const QueryRows rows{at(x.dq, x.s.dq_strides, b, token, h), x.s.dq_strides[1], token,
                       static_cast<int>(x.s.Tq), static_cast<float>(x.s.scale)};
  const FragmentPlace fragment(static_cast<int>(threadIdx.x) % kWarpgroupSize);
  if (x.plan.last_key_tile(static_cast<int>(tile)) < 0) {
    const float zeros[kD / 2] = {};
    store_fragment(rows.dq, rows.stride, rows.tokens - rows.token, zeros, 0.0f, fragment);
    return;
  }
  const int64_t place = (b * x.s.H + h) * x.plan.query_tiles + tile;
  const float4* sums =
      reinterpret_cast<const float4*>(x.scratch.dq) + place * (kBackwardQueries * kD / 4);
  finish_queries<kD>(rows, sums, x.rotary, fragment);
}

bool kernel_runs(int64_t D) {
  bool runs = false;
  with_tile(kHopperBackwardTiles, hopper_backward_tile(D), [&](auto index) {
    static const bool this_runs =
        hopper_kernel_runs(reinterpret_cast<const void*>(hopper_attention_backward_kernel<index>),
                           BackwardTile<index>::kSharedBytes);
    runs = this_runs;
  });
  return runs;
}

}  // namespace

const char* hopper_attention_backward_refusal(const AttentionBackward<bfloat16>& x,
                                              const AttentionShape& s) {
  if (hopper_backward_tile(s.D) < 0) return kHopperHeadSizes;
  if (!hopper_extents_fit(s) || s.H > int64_t{kGradientHeads} * kMaxGridYZ) return kHopperExtents;
  if (!tma_takes(x.q, s.q_strides, s.B, s.Tq, s.H, s.D) ||
      !tma_takes(x.k, s.k_strides, s.B, s.Tk, s.Hk, s.D) ||
      !tma_takes(x.v, s.v_strides, s.B, s.Tk, s.Hk, s.D) ||
      !tma_takes(x.d_o, s.do_strides, s.B, s.Tq, s.H, s.D) || !rows_aligned(x.dq, s.dq_strides) ||
      !rows_aligned(x.dk, s.dk_strides) || !rows_aligned(x.dv, s.dv_strides)) {
    return kHopperRows;
  }
  return kernel_runs(s.D) ? nullptr : kNoHopper;
}

void hopper_attention_backward(const AttentionBackward<bfloat16>& tensors, const AttentionShape& s,
                               const RotaryTable<float>& rotary, void* scratch, Stream stream) {
  check_attention(s);
  with_tile(kHopperBackwardTiles, hopper_backward_tile(s.D), [&](auto index) {
    using Tile = BackwardTile<index>;
    constexpr int kDeltaThreads = 256;
    const BackwardPlan plan(s);
    const BackwardExtents extents(s, plan);
    const BackwardScratch memory(extents, scratch);
    const int64_t threads = std::max(4 * s.B * s.Tq * s.H, extents.counters());
    launch(hopper_attention_delta_kernel<Tile::kD>,
           one_block_each(ceil_div(threads, kDeltaThreads)), dim3(kDeltaThreads), 0, stream, memory,
           extents.counters(), tensors.d_o, tensors.o, s, rows_aligned(tensors.o, s.o_strides));
    const BackwardArguments x{
        .q = make_tile_map(tensors.q, s.q_strides, s.B, s.Tq, s.H, s.D, kBackwardQueries),
        .k = make_tile_map(tensors.k, s.k_strides, s.B, s.Tk, s.Hk, s.D, kBackwardKeys),
        .v = make_tile_map(tensors.v, s.v_strides, s.B, s.Tk, s.Hk, s.D, kBackwardKeys),
        .d_o = make_tile_map(tensors.d_o, s.do_strides, s.B, s.Tq, s.H, s.D, kBackwardQueries),
        .s = s,
        .scale_log2 = static_cast<float>(s.scale * double{kLog2E}),
        .plan = plan,
        .dq = tensors.dq,
        .dk = tensors.dk,
        .dv = tensors.dv,
        .lse = tensors.lse,
        .scratch = memory,
        .rotary = rotary};
    launch_persistent(hopper_attention_backward_kernel<index>, plan.items, kBackwardWarpgroups - 1,
                      Tile::kSharedBytes, stream, x);
    launch(hopper_attention_query_gradients_kernel<Tile::kD>,
           dim3(static_cast<unsigned>(s.B * plan.query_tiles),
                static_cast<unsigned>(ceil_div(s.H, kGradientHeads))),
           dim3(kGradientHeads * kWarpgroupSize), 0, stream, x);
  });
}

}  // namespace quern::kernels::cuda
