// Flash attention for Hopper, backward: dQ (B, Tq, H, D), dK and dV (B, Tk, Hk, D). One kernel does
// the products, transposed. One before it computes delta, one after it makes dQ from sums.
//   S^T = K Q^T,  P^T = exp2(S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),
//   dV = P^T dO,  dK = scale dS^T Q,  dQ = scale dS K.
// A block owns a tile of keys and walks over the queries of the heads that share it. P^T and dS^T
// go from registers straight into the next product. dS^T also goes to shared memory, for dQ, to
// which many blocks add (attention_hopper_query_sums.cuh). Bound by the tensor cores: 10 Tq Tk D
// operations a head, half of that when causal.
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_load.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_key_sums.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"
#include "kernels/cuda/primitives/tma.cuh"

namespace quern::kernels::cuda {

namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// dS^T of both consumers is in shared memory: one barrier for even steps, one for odd ones.
using ScoresReady = NamedBarriers<2, kBackwardConsumers * kWarpgroupSize>;
// A consumer's dK and dV are in scratch memory.
using PartsStored = NamedBarriers<kBackwardConsumers, kWarpgroupSize, ScoresReady>;

// One warpgroup: 64 keys of each item.
template <int kTile>
struct Consumer {
  using Tile = BackwardTile<kTile>;
  using Keys = typename Tile::Keys;
  using Queries = typename Tile::Queries;
  using Scores = typename Tile::Scores;
  static constexpr int kD = Tile::kD;
  static constexpr bool kScoresAhead = Tile::kParts == 1;
  using ScoreSums = float[kBackwardQueries / 2];          // 64 keys by the queries of a tile
  using ScoreWords = uint32_t[kBackwardQueries / 16][4];  // the same in BF16

  typename Tile::Tiles& tiles;
  typename Tile::Barriers& barriers;
  const BackwardArguments& x;
  const int warpgroup;
  const FragmentPlace fragment;
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<Tile::kStages> ring;
  RingPlace<1> sums;  // of the buffers that this warpgroup uses
  int steps = 0;      // of all items; the parity selects the warpgroup that computes dQ
  float dk[kD / 2], dv[kD / 2];
  ScoreSums scores, dp;
  ScoreWords p, ds;

  __device__ __forceinline__ void run() {
    while (true) {
      barriers.keys.wait_full(keys, kTileK);
      const int index = barriers.item[keys.stage];
      if (index < 0) return;
      compute(BackwardItem(index, x.plan, static_cast<int>(x.s.Hk)));
      keys.advance();
    }
  }

  // Zeros, so that the compiler does not keep old sums. The next product overwrites them.
  __device__ __forceinline__ static void forget(ScoreSums& sums) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }

  __device__ __forceinline__ int first_row() const {
    return warpgroup * kWarpgroupRows;
  }

  __device__ __forceinline__ void compute(const BackwardItem& item) {
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) dk[i] = dv[i] = 0.0f;
    if constexpr (kScoresAhead) multiply_scores();
    barriers.keys.wait_full(keys, kTileV);
    wgmma_wait<0>();
    settle(scores);
    int h = item.first_head, tile = item.first_tile;
    while (true) {
      const bool last_of_head = tile + 1 == x.plan.query_tiles;
      const bool last = last_of_head && h + 1 == item.end_head;
      if (steps % 2 == warpgroup) {
        last ? step<true, false>(item, tile) : step<true, true>(item, tile);
      } else {
        last ? step<false, false>(item, tile) : step<false, true>(item, tile);
      }
      ++steps;
      if (last) break;
      tile = last_of_head ? item.first_tile : tile + 1;
      h += last_of_head ? 1 : 0;
    }
    barriers.keys.release(keys.stage, static_cast<int>(threadIdx.x));
    if (x.plan.parts == 1 || add_parts(item)) store_keys(item);
  }

  __device__ __forceinline__ void multiply_scores() {
    barriers.queries.wait_full(ring, kTileQ);
    forget(scores);
    settle(scores);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(scores, Keys::k_major(tiles.k[keys.stage], first_row()),
                                     Queries::k_major(tiles.q[ring.stage]));
    wgmma_commit();
  }

  // One tile of queries. exp overlaps dP^T, and dS^T overlaps dV and S^T of the next tile. While
  // the last products finish, the other warpgroup computes. No product is in flight between steps;
  // otherwise the compiler would serialize the products.
  template <bool kOwnsDq, bool kHasNext>
  __device__ __forceinline__ void step(const BackwardItem& item, int tile) {
    const int stage = ring.stage, turn = steps % 2;
    if constexpr (!kScoresAhead) multiply_scores();
    barriers.queries.wait_full(ring, kTileDo);
    forget(dp);
    settle(dp);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(dp, Keys::k_major(tiles.v[keys.stage], first_row()),
                                     Queries::k_major(tiles.d_o[stage]));
    wgmma_commit();

    if constexpr (!kScoresAhead) {
      wgmma_wait<1>();
      settle(scores);
    }
    make_probabilities(item, tile, barriers.lse[stage] + fragment.column);
    settle(p);
    wgmma_fence();
    add_product<Queries>(dv, p, Queries::mn_major(tiles.d_o[stage]));
    wgmma_commit();

    ring.advance();
    if constexpr (kHasNext && kScoresAhead) {
      multiply_scores();
      wgmma_wait<2>();
    } else {
      wgmma_wait<1>();
    }
    settle(dp);
    make_score_gradients(barriers.delta[stage] + fragment.column);
    settle(ds);
    store_score_gradients<Scores>(tiles.ds[turn], first_row(), ds);
    fence_async_proxy();
    wgmma_fence();
    add_product<Queries>(dk, ds, Queries::mn_major(tiles.q[stage]));
    wgmma_commit();
    if constexpr (kOwnsDq) {
      wgmma_wait<1>();  // all but dK: dQ needs the registers of P^T
      settle(dv);
      ScoresReady::sync(turn);
      add_queries(stage);
    } else {
      ScoresReady::arrive(turn);
      finish_products(stage);
    }
    settle(scores);
    if (kOwnsDq || Tile::kParts > 1) sums.advance();
  }

  __device__ __forceinline__ void finish_products(int stage) {
    wgmma_wait<0>();
    settle(dk);
    settle(dv);
    barriers.queries.release(stage, static_cast<int>(threadIdx.x));
  }

  // P^T of rows beyond Tk must be 0 too, since they add to dQ.
  __device__ __forceinline__ void make_probabilities(const BackwardItem& item, int tile,
                                                     const float* lse) {
    const float scale = static_cast<float>(x.s.scale) * kLog2E;
    const int k0 = item.key_tile * kBackwardKeys + first_row(), q0 = tile * kBackwardQueries;
    const int first_query = k0 - x.plan.diagonal;  // the first that sees key k0
    const int keys_left = static_cast<int>(x.s.Tk) - k0;
    const bool masked = q0 < first_query + kWarpgroupRows - 1 || keys_left < kWarpgroupRows;
    if (masked) {
      int first[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = fragment.row + 8 * r;
        first[r] = row < keys_left ? first_query + row - fragment.column - q0 : kBackwardQueries;
      }
      transposed_probabilities<true>(p, scores, scale, lse, first);
    } else {
      transposed_probabilities<false>(p, scores, scale, lse, {0, 0});
    }
  }

  __device__ __forceinline__ void make_score_gradients(const float* delta) {
#pragma unroll
    for (int j = 0; j < kBackwardQueries / 8; ++j) {
      float of_column[2];
      load_vec(of_column, delta + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ds[j / 2][j % 2 * 2 + r] =
            score_gradients(p[j / 2][j % 2 * 2 + r], dp[4 * j + 2 * r], dp[4 * j + 2 * r + 1],
                            of_column[0], of_column[1]);
      }
    }
  }

  // Computes dQ of the tile from all keys of the block and hands it to the sums. It comes in parts
  // if registers cannot hold all of it; then S^T of the next tile is not computed ahead either.
  __device__ __forceinline__ void add_queries(int stage) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
#pragma unroll
    for (int part = 0; part < Tile::kParts; ++part) {
      const int buffer = Tile::kParts > 1 ? part : warpgroup;
      float dq[Tile::kDqColumns / 2];
      settle(dq);
      wgmma_fence();
      multiply_columns<Scores, Keys, kBackwardKeys>(
          dq, Scores::mn_major(tiles.ds[warpgroup]),
          Keys::mn_major(tiles.k[keys.stage], part * Tile::kDqColumns));
      wgmma_commit();
      if (part == 0) {
        finish_products(stage);
      } else {
        wgmma_wait<0>();
      }
      settle(dq);
      barriers.sums[buffer].wait_empty(sums);
      store_fours(dq, [&](int i, const float4& four) { tiles.dq[buffer][i + thread] = four; });
      fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % kWarpSize == 0) barriers.sums[buffer].full[0][0].arrive();
    }
  }

  // Stores dK and dV of the item to scratch. With the last part, sums all parts and returns true.
  __device__ __forceinline__ bool add_parts(const BackwardItem& item) {
    constexpr int kPart = kWarpgroupRows * kD / 4;  // float4 of dV; as many of dK
    const int64_t head = item.b * x.s.Hk + item.kv_head;
    const int64_t place =
        (head * x.plan.key_tiles + item.key_tile) * kBackwardConsumers + warpgroup;
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
    const auto tokens = static_cast<int>(x.s.Tk);
    store_fragment(at(x.dv, x.s.dv_strides, item.b, k0, item.kv_head), x.s.dv_strides[1],
                   tokens - k0, dv, 1.0f, fragment);
    rotate_back<kD, kD / 16>(dk, dk + kD / 4, x.rotary, k0 + fragment.row, tokens, fragment.column);
    store_fragment(at(x.dk, x.s.dk_strides, item.b, k0, item.kv_head), x.s.dk_strides[1],
                   tokens - k0, dk, static_cast<float>(x.s.scale), fragment);
  }
};

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kTile>
__global__ void __launch_bounds__(kBackwardThreads, 1)
    hopper_attention_backward_kernel(const __grid_constant__ BackwardArguments x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = BackwardTile<kTile>;
  extern __shared__ uint8_t hopper_tiles[];
  __shared__ typename Tile::Barriers barriers;
  auto& tiles = *reinterpret_cast<typename Tile::Tiles*>(align_tiles(hopper_tiles));
  const int thread = static_cast<int>(threadIdx.x), warpgroup = start_block(barriers);
  if (warpgroup == 0) {
    begin_producing<kBackwardConsumers>();
    const int warp = __shfl_sync(~0u, thread / kWarpSize, 0);
    if (warp == 0) {
      load_items<kTile>(tiles, barriers, x);
    } else if (warp <= Tile::kSumBuffers && thread % kWarpSize == 0) {
      add_sums<kTile>(tiles, barriers, x, warp - 1);
    }
  } else {
    begin_consuming<kBackwardConsumers>();
    Consumer<kTile> consumer{tiles, barriers, x, warpgroup - 1,
                             FragmentPlace(thread % kWarpgroupSize)};
    consumer.run();
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
        .plan = plan,
        .dq = tensors.dq,
        .dk = tensors.dk,
        .dv = tensors.dv,
        .lse = tensors.lse,
        .scratch = memory,
        .rotary = rotary};
    launch_persistent(hopper_attention_backward_kernel<index>, plan.items, kBackwardConsumers,
                      Tile::kSharedBytes, stream, x);
    launch(hopper_attention_query_gradients_kernel<Tile::kD>,
           dim3(static_cast<unsigned>(s.B * plan.query_tiles),
                static_cast<unsigned>(ceil_div(s.H, kGradientHeads))),
           dim3(kGradientHeads * kWarpgroupSize), 0, stream, x);
  });
}

}  // namespace quern::kernels::cuda
