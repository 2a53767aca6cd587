// Flash attention for Hopper, backward, second kernel, transposed throughout:
//   S^T = K Q^T,  P^T = exp2(S^T - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),
//   dV = P^T dO,  dK = scale dS^T Q.
// A block owns a tile of keys and adds over the queries of all heads that share it, in order. P^T
// and dS^T go from the registers that hold them straight into the next product. Bound by the tensor
// cores: 8 Tq Tk D operations a head.
#include "kernels/cuda/attention_hopper_backward.cuh"
#include "kernels/cuda/tma.cuh"

namespace quern::kernels::cuda {

namespace {

template <int kTile>
struct DkdvTile {
  static constexpr HopperBackwardTile tile = kHopperBackwardTiles[kTile];
  static constexpr int kConsumers = tile.dkdv_consumers;
  static constexpr int kThreads = hopper_threads(kConsumers);
  static constexpr int kProducerRegisters = producer_registers(kConsumers);
  static constexpr int kConsumerRegisters = consumer_registers(kConsumers);
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 512);  // of an SM quarter
  static constexpr int kD = tile.head_dim;
  static constexpr int kKeys = kConsumers * kWarpgroupRows;
  static constexpr int kQueries = tile.dkdv_queries;
  using Keys = SwizzledTile<kKeys, kD>;
  using Queries = SwizzledTile<kQueries, kD>;

  struct Tiles {
    alignas(kTileAlignment) uint8_t k[Keys::kBytes];
    alignas(kTileAlignment) uint8_t v[Keys::kBytes];
    alignas(kTileAlignment) uint8_t q[kDkdvStages][Queries::kBytes];
    alignas(kTileAlignment) uint8_t d_o[kDkdvStages][Queries::kBytes];
    alignas(16) float lse[kDkdvStages][kQueries], delta[kDkdvStages][kQueries];  // come with q
  };
  static_assert(Queries::kBytes % (8 * Queries::kRowBytes) == 0);  // where swizzling repeats
  static constexpr int kSharedBytes = sizeof(Tiles) + kTileAlignment;

  struct Barriers {
    MBarrier k_full, v_full;
    MBarrier q_full[kDkdvStages], do_full[kDkdvStages], empty[kDkdvStages];

    __device__ __forceinline__ void init() {
      k_full.init(1);
      v_full.init(1);
      for (MBarrier& full : q_full) full.init(2);  // Q; lse and delta
      for (MBarrier& full : do_full) full.init(1);
      for (MBarrier& each : empty) each.init(kConsumers * kWarpgroupSize / kWarpSize);
      barriers_ready();
    }
  };
};

struct DkdvArguments {
  CUtensorMap q, k, v, d_o;
  AttentionShape s;
  bfloat16 *dk, *dv;
  const float *lse, *delta;
  int heads_together;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The keys of one block, and the tiles of queries that see one of them: those from first_tile on,
// for one query head after the other.
template <int kTile>
struct DkdvPlace {
  using Tile = DkdvTile<kTile>;

  int b, kv_head, k0, group, first_tile, end_tile;
  int diagonal;  // query i sees the keys up to i + diagonal

  __device__ explicit DkdvPlace(const AttentionShape& s, int heads_together) {
    const int tiles = static_cast<int>(ceil_div(s.Tk, Tile::kKeys));
    const int heads = static_cast<int>(s.Hk);
    const BlockPlace block(static_cast<int>(blockIdx.x), tiles, static_cast<int>(s.B) * heads,
                           heads_together);
    b = block.head / heads;
    kv_head = block.head % heads;
    k0 = block.tile * Tile::kKeys;
    group = static_cast<int>(s.H) / heads;
    diagonal = s.causal ? static_cast<int>(s.Tk - s.Tq) : static_cast<int>(s.Tk);
    first_tile = max(k0 - diagonal, 0) / Tile::kQueries;
    end_tile = static_cast<int>(ceil_div(s.Tq, Tile::kQueries));
  }
};

// By a whole warp: its lanes bring lse and delta, the first one the tiles.
template <int kTile>
__device__ __forceinline__ void load_dkdv_tiles(typename DkdvTile<kTile>::Tiles& tiles,
                                                typename DkdvTile<kTile>::Barriers& barriers,
                                                const DkdvArguments& x,
                                                const DkdvPlace<kTile>& place) {
  using Tile = DkdvTile<kTile>;
  constexpr int kRounds = (Tile::kQueries + kWarpSize - 1) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int length = static_cast<int>(x.s.Tq);
  if (lane == 0) {
    barriers.k_full.arrive_expecting(Tile::Keys::kBytes);
    load_tile_async(tiles.k, x.k, barriers.k_full, place.k0, place.kv_head, place.b);
    barriers.v_full.arrive_expecting(Tile::Keys::kBytes);
    load_tile_async(tiles.v, x.v, barriers.v_full, place.k0, place.kv_head, place.b);
  }
  RingPlace<kDkdvStages> ring;
  for (int in_group = 0; in_group < place.group; ++in_group) {
    const int h = place.kv_head * place.group + in_group;
    const int64_t head = (place.b * x.s.H + h) * x.s.Tq;
    for (int tile = place.first_tile; tile < place.end_tile; ++tile) {
      const int q0 = tile * Tile::kQueries;
      float lse[kRounds], delta[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int query = q0 + i * kWarpSize + lane;
        lse[i] = query < length ? x.lse[head + query] : -INFINITY;
        delta[i] = query < length ? x.delta[head + query] : 0.0f;
      }
      const int stage = ring.stage;
      barriers.empty[stage].wait(ring.parity ^ 1);
      if (lane == 0) {
        barriers.q_full[stage].arrive_expecting(Tile::Queries::kBytes);
        load_tile_async(tiles.q[stage], x.q, barriers.q_full[stage], q0, h, place.b);
        barriers.do_full[stage].arrive_expecting(Tile::Queries::kBytes);
        load_tile_async(tiles.d_o[stage], x.d_o, barriers.do_full[stage], q0, h, place.b);
      }
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int column = i * kWarpSize + lane;
        if (column >= Tile::kQueries) continue;
        tiles.lse[stage][column] = lse_log2(lse[i]);
        tiles.delta[stage][column] = delta[i];
      }
      __syncwarp();
      if (lane == 0) barriers.q_full[stage].arrive();
      ring.advance();
    }
  }
}

// One warpgroup: 64 keys. exp runs beside dP^T, and dS^T beside dV and S^T of the next tile; while
// dK is finished, the other warpgroups compute. Nothing is in flight from one turn to the next, or
// the compiler would serialize the products.
template <int kTile>
__device__ __forceinline__ void compute_dkdv(typename DkdvTile<kTile>::Tiles& tiles,
                                             typename DkdvTile<kTile>::Barriers& barriers,
                                             const DkdvArguments& x, const DkdvPlace<kTile>& place,
                                             int first_row) {
  using Tile = DkdvTile<kTile>;
  using Keys = typename Tile::Keys;
  using Queries = typename Tile::Queries;
  constexpr int kD = Tile::kD;
  const int k0 = place.k0 + first_row;
  const int first_query = k0 - place.diagonal;  // that sees key k0
  const FragmentPlace fragment(static_cast<int>(threadIdx.x) % kWarpgroupSize);
  const float scale = static_cast<float>(x.s.scale) * kLog2E;

  float dk[kD / 2] = {}, dv[kD / 2] = {};
  float scores[Tile::kQueries / 2], dp[Tile::kQueries / 2];
  uint32_t p[Tile::kQueries / 16][4], ds[Tile::kQueries / 16][4];
  RingPlace<kDkdvStages> ring;
  const uint64_t k_rows = Keys::k_major(tiles.k, first_row);
  const uint64_t v_rows = Keys::k_major(tiles.v, first_row);

  const auto multiply_scores = [&] {
    barriers.q_full[ring.stage].wait(ring.parity);
    settle(scores);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(scores, k_rows, Queries::k_major(tiles.q[ring.stage]));
    wgmma_commit();
  };
  const auto step = [&](int q0, auto has_next) {
    const int stage = ring.stage;
    barriers.do_full[stage].wait(ring.parity);
    settle(dp);
    wgmma_fence();
    multiply_rows<Keys, Queries, kD>(dp, v_rows, Queries::k_major(tiles.d_o[stage]));
    wgmma_commit();

    const float* const lse = tiles.lse[stage] + fragment.column;
    const float* const delta = tiles.delta[stage] + fragment.column;
    const int seen_from = first_query + fragment.row - fragment.column - q0;
    const int first[2] = {seen_from, seen_from + 8};
    if (q0 < first_query + kWarpgroupRows - 1) {
      transposed_probabilities<true>(p, scores, scale, lse, first);
    } else {
      transposed_probabilities<false>(p, scores, scale, lse, first);
    }
    settle(p);
    wgmma_fence();
    add_product<Queries>(dv, p, Queries::mn_major(tiles.d_o[stage]));
    wgmma_commit();

    ring.advance();
    if constexpr (decltype(has_next)::value) {
      multiply_scores();
      wgmma_wait<2>();
    } else {
      wgmma_wait<1>();
    }
    settle(dp);
#pragma unroll
    for (int j = 0; j < Tile::kQueries / 8; ++j) {
      float of_column[2];
      load_vec(of_column, delta + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        ds[j / 2][j % 2 * 2 + r] =
            score_gradients(p[j / 2][j % 2 * 2 + r], dp[4 * j + 2 * r], dp[4 * j + 2 * r + 1],
                            of_column[0], of_column[1]);
      }
    }
    settle(ds);
    wgmma_fence();
    add_product<Queries>(dk, ds, Queries::mn_major(tiles.q[stage]));
    wgmma_commit();
    wgmma_wait<0>();
    settle(dk);
    settle(dv);
    settle(scores);
    release(barriers.empty[stage]);
  };

  barriers.k_full.wait(0);
  multiply_scores();
  barriers.v_full.wait(0);
  wgmma_wait<0>();
  settle(scores);
  int heads_left = place.group, q0 = place.first_tile * Tile::kQueries;
  while (true) {
    const int next = q0 + Tile::kQueries;
    const bool last_of_head = next >= static_cast<int>(x.s.Tq);
    if (last_of_head && --heads_left == 0) break;
    step(q0, std::true_type{});
    q0 = last_of_head ? place.first_tile * Tile::kQueries : next;
  }
  step(q0, std::false_type{});

  const int rows = static_cast<int>(x.s.Tk) - k0;
  store_fragment(at(x.dv, x.s.dv_strides, place.b, k0, place.kv_head), x.s.dv_strides[1], rows, dv,
                 1.0f, fragment);
  store_fragment(at(x.dk, x.s.dk_strides, place.b, k0, place.kv_head), x.s.dk_strides[1], rows, dk,
                 static_cast<float>(x.s.scale), fragment);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kTile>
__global__ void __launch_bounds__(DkdvTile<kTile>::kThreads, 1)
    hopper_dkdv_kernel(const __grid_constant__ DkdvArguments x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = DkdvTile<kTile>;
  extern __shared__ uint8_t hopper_tiles[];
  __shared__ typename Tile::Barriers barriers;
  auto& tiles = *reinterpret_cast<typename Tile::Tiles*>(align_tiles(hopper_tiles));
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  const DkdvPlace<kTile> place(x.s, x.heads_together);
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = __shfl_sync(~0u, thread / kWarpgroupSize, 0);  // alike in all lanes
  if (warpgroup == 0) {
    give_registers<Tile::kProducerRegisters>();
    if (thread < kWarpSize) load_dkdv_tiles<kTile>(tiles, barriers, x, place);
  } else {
    take_registers<Tile::kConsumerRegisters>();
    compute_dkdv<kTile>(tiles, barriers, x, place, (warpgroup - 1) * kWarpgroupRows);
  }
#endif
}

}  // namespace

bool hopper_dkdv_runs(int64_t D) {
  bool runs = false;
  with_tile<kHopperBackwardTileCount>(hopper_backward_tile(D), [&](auto index) {
    static const bool this_runs = hopper_kernel_runs(
        reinterpret_cast<const void*>(hopper_dkdv_kernel<index>), DkdvTile<index>::kSharedBytes);
    runs = this_runs;
  });
  return runs;
}

void hopper_attention_dkdv(bfloat16* dk, bfloat16* dv, const bfloat16* d_o, const float* lse,
                           const float* delta, const bfloat16* q, const bfloat16* k,
                           const bfloat16* v, const AttentionShape& s, Stream stream) {
  with_tile<kHopperBackwardTileCount>(hopper_backward_tile(s.D), [&](auto index) {
    using Tile = DkdvTile<index>;
    const int64_t head_bytes = 2 * s.Tq * s.D * static_cast<int64_t>(sizeof(bfloat16));
    DkdvArguments x{};
    x.q = make_tile_map(q, s.q_strides, s.B, s.Tq, s.H, s.D, Tile::kQueries);
    x.k = make_tile_map(k, s.k_strides, s.B, s.Tk, s.Hk, s.D, Tile::kKeys);
    x.v = make_tile_map(v, s.v_strides, s.B, s.Tk, s.Hk, s.D, Tile::kKeys);
    x.d_o = make_tile_map(d_o, s.do_strides, s.B, s.Tq, s.H, s.D, Tile::kQueries);
    x.s = s;
    x.dk = dk;
    x.dv = dv;
    x.lse = lse;
    x.delta = delta;
    x.heads_together = heads_in_l2(head_bytes * (s.H / s.Hk), s.B * s.Hk);
    launch(hopper_dkdv_kernel<index>, one_block_each(s.B * s.Hk * ceil_div(s.Tk, Tile::kKeys)),
           dim3(Tile::kThreads), size_t{Tile::kSharedBytes}, stream, x);
  });
}

}  // namespace quern::kernels::cuda
