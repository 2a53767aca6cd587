// Flash attention for Hopper, backward, first kernel: delta = sum over D of dO O, and
//   S = Q K^T,  P = exp2(S - lse),  dP = dO V^T,  dS = P (dP - delta),  dQ = scale dS K.
// A block owns a tile of queries; one warp copies K and V into rings of tiles, the consumers' S, dP
// and dQ stay in registers. Bound by the tensor cores: 6 Tq Tk D operations a head.
#include "kernels/cuda/attention_hopper_backward.cuh"
#include "kernels/cuda/tma.cuh"

namespace quern::kernels::cuda {

namespace {

template <int kTile>
struct DqTile {
  static constexpr HopperBackwardTile tile = kHopperBackwardTiles[kTile];
  static constexpr int kConsumers = tile.dq_consumers;
  static constexpr int kThreads = hopper_threads(kConsumers);
  static constexpr int kProducerRegisters = producer_registers(kConsumers);
  static constexpr int kConsumerRegisters = consumer_registers(kConsumers);
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 512);  // of an SM quarter
  static constexpr int kD = tile.head_dim;
  static constexpr int kQueries = kConsumers * kWarpgroupRows;
  static constexpr int kKeys = tile.dq_keys;
  using Queries = SwizzledTile<kQueries, kD>;
  using Keys = SwizzledTile<kKeys, kD>;

  struct Tiles {
    alignas(kTileAlignment) uint8_t q[Queries::kBytes];
    alignas(kTileAlignment) uint8_t d_o[Queries::kBytes];
    alignas(kTileAlignment) uint8_t k[kKeyStages][Keys::kBytes];
    alignas(kTileAlignment) uint8_t v[kValueStages][Keys::kBytes];
  };
  static_assert(Keys::kBytes % (8 * Keys::kRowBytes) == 0);  // where swizzling repeats
  static constexpr int kSharedBytes = sizeof(Tiles) + kTileAlignment;

  struct Barriers {
    MBarrier q_full, do_full;
    MBarrier k_full[kKeyStages], k_empty[kKeyStages];
    MBarrier v_full[kValueStages], v_empty[kValueStages];

    __device__ __forceinline__ void init() {
      constexpr int kWarps = kConsumers * kWarpgroupSize / kWarpSize;
      q_full.init(1);
      do_full.init(1);
      for (MBarrier& full : k_full) full.init(1);
      for (MBarrier& full : v_full) full.init(1);
      for (MBarrier& empty : k_empty) empty.init(kWarps);
      for (MBarrier& empty : v_empty) empty.init(kWarps);
      barriers_ready();
    }
  };
};

struct DqArguments {
  CUtensorMap q, k, v, d_o;
  AttentionShape s;
  bfloat16* dq;
  float* delta;
  const bfloat16 *do_rows, *o_rows;
  bool o_vectors;  // whether O allows 16-byte accesses; TMA asks it of the others
  const float* lse;
  int heads_together;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The tiles of queries and keys of one block. Keys are walked from the last that any query sees
// down to the first, so that the tiles which need a mask come first.
template <int kTile>
struct DqPlace {
  using Tile = DqTile<kTile>;

  int b, h, kv_head, q0, key_tiles;
  int diagonal;  // query i sees the keys up to i + diagonal

  __device__ explicit DqPlace(const AttentionShape& s, int heads_together) {
    const int tiles = static_cast<int>(ceil_div(s.Tq, Tile::kQueries));
    const int heads = static_cast<int>(s.H);
    const BlockPlace block(static_cast<int>(blockIdx.x), tiles, static_cast<int>(s.B) * heads,
                           heads_together);
    b = block.head / heads;
    h = block.head % heads;
    kv_head = h / (heads / static_cast<int>(s.Hk));
    q0 = (tiles - 1 - block.tile) * Tile::kQueries;
    diagonal = s.causal ? static_cast<int>(s.Tk - s.Tq) : static_cast<int>(s.Tk);
    const auto keys = static_cast<int>(keys_end(s, q0, Tile::kQueries));
    key_tiles = keys <= 0 ? 0 : (keys + Tile::kKeys - 1) / Tile::kKeys;
  }
  __device__ int first_key(int n) const { return (key_tiles - 1 - n) * Tile::kKeys; }
};

template <int kTile>
__device__ __forceinline__ void load_dq_tiles(typename DqTile<kTile>::Tiles& tiles,
                                              typename DqTile<kTile>::Barriers& barriers,
                                              const DqArguments& x, const DqPlace<kTile>& place) {
  using Tile = DqTile<kTile>;
  if (place.key_tiles == 0) return;
  barriers.q_full.arrive_expecting(Tile::Queries::kBytes);
  load_tile_async(tiles.q, x.q, barriers.q_full, place.q0, place.h, place.b);
  RingPlace<kKeyStages> k;
  RingPlace<kValueStages> v;
  for (int n = 0; n < place.key_tiles; ++n) {
    const int key = place.first_key(n);
    barriers.k_empty[k.stage].wait(k.parity ^ 1);
    barriers.k_full[k.stage].arrive_expecting(Tile::Keys::kBytes);
    load_tile_async(tiles.k[k.stage], x.k, barriers.k_full[k.stage], key, place.kv_head, place.b);
    if (n == 0) {
      barriers.do_full.arrive_expecting(Tile::Queries::kBytes);
      load_tile_async(tiles.d_o, x.d_o, barriers.do_full, place.q0, place.h, place.b);
    }
    barriers.v_empty[v.stage].wait(v.parity ^ 1);
    barriers.v_full[v.stage].arrive_expecting(Tile::Keys::kBytes);
    load_tile_async(tiles.v[v.stage], x.v, barriers.v_full[v.stage], key, place.kv_head, place.b);
    k.advance();
    v.advance();
  }
}

// logsumexp and delta of a thread's two rows.
struct RowNumbers {
  float lse[2], delta[2];

  template <int kTile>
  __device__ static RowNumbers make(const DqArguments& x, const DqPlace<kTile>& place, int row) {
    RowNumbers numbers;
    const AttentionShape& s = x.s;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t i = row + 8 * r;
      const int64_t index = (place.b * s.H + place.h) * s.Tq + i;
      float sum = 0.0f;
      numbers.lse[r] = INFINITY;
      if (i < s.Tq) {
        numbers.lse[r] = lse_log2(x.lse[index]);
        sum = part_of_delta<DqTile<kTile>::kD>(at(x.do_rows, s.do_strides, place.b, i, place.h),
                                               at(x.o_rows, s.o_strides, place.b, i, place.h),
                                               x.o_vectors);
      }
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      numbers.delta[r] = sum;
      if (i < s.Tq && threadIdx.x % 4 == 0) x.delta[index] = sum;
    }
    return numbers;
  }
};

// One warpgroup: 64 queries. exp runs beside dP, and dS beside S of the next tile; while dQ is
// finished, the other warpgroups compute. Nothing is in flight from one turn to the next, or the
// compiler would serialize the products.
template <int kTile>
__device__ __forceinline__ void compute_dq(typename DqTile<kTile>::Tiles& tiles,
                                           typename DqTile<kTile>::Barriers& barriers,
                                           const DqArguments& x, const DqPlace<kTile>& place,
                                           int first_row) {
  using Tile = DqTile<kTile>;
  using Queries = typename Tile::Queries;
  using Keys = typename Tile::Keys;
  constexpr int kD = Tile::kD;
  const FragmentPlace fragment(static_cast<int>(threadIdx.x) % kWarpgroupSize);
  const int row = place.q0 + first_row + fragment.row;
  const auto numbers = RowNumbers::make<kTile>(x, place, row);
  const float scale = static_cast<float>(x.s.scale) * kLog2E;

  float dq[kD / 2] = {};
  float scores[Tile::kKeys / 2], dp[Tile::kKeys / 2];
  uint32_t p[Tile::kKeys / 16][4];  // P, then dS
  RingPlace<kKeyStages> k;
  RingPlace<kValueStages> v;
  const uint64_t q_rows = Queries::k_major(tiles.q, first_row);
  const uint64_t do_rows = Queries::k_major(tiles.d_o, first_row);

  const auto multiply_scores = [&] {
    barriers.k_full[k.stage].wait(k.parity);
    settle(scores);
    wgmma_fence();
    multiply_rows<Queries, Keys, kD>(scores, q_rows, Keys::k_major(tiles.k[k.stage]));
    wgmma_commit();
  };
  const auto step = [&](int n, auto has_next) {
    barriers.v_full[v.stage].wait(v.parity);
    settle(dp);
    wgmma_fence();
    multiply_rows<Queries, Keys, kD>(dp, do_rows, Keys::k_major(tiles.v[v.stage]));
    wgmma_commit();

    const int k0 = place.first_key(n);
    const int row_end = place.q0 + first_row + place.diagonal + 1;  // the first row's last key + 1
    int limit[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int end = min(row + 8 * r + place.diagonal + 1, static_cast<int>(x.s.Tk));
      limit[r] = end - k0 - fragment.column;
    }
    if (k0 + Tile::kKeys > min(row_end, static_cast<int>(x.s.Tk))) {
      probabilities<true>(p, scores, scale, numbers.lse, limit);
    } else {
      probabilities<false>(p, scores, scale, numbers.lse, limit);
    }

    const int this_k = k.stage;
    k.advance();
    if constexpr (decltype(has_next)::value) {
      multiply_scores();
      wgmma_wait<1>();
    } else {
      wgmma_wait<0>();
    }
    settle(dp);
    release(barriers.v_empty[v.stage]);
    v.advance();
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 4; ++i) {
      const float delta = numbers.delta[i % 2];
      p[i / 4][i % 4] = score_gradients(p[i / 4][i % 4], dp[2 * i], dp[2 * i + 1], delta, delta);
    }
    settle(p);
    wgmma_fence();
    add_product<Keys>(dq, p, Keys::mn_major(tiles.k[this_k]));
    wgmma_commit();
    wgmma_wait<0>();
    settle(dq);
    settle(scores);
    settle(p);
    release(barriers.k_empty[this_k]);
  };

  if (place.key_tiles > 0) {
    barriers.q_full.wait(0);
    multiply_scores();
    barriers.do_full.wait(0);
    wgmma_wait<0>();
    settle(scores);
    for (int n = 0; n + 1 < place.key_tiles; ++n) step(n, std::true_type{});
    step(place.key_tiles - 1, std::false_type{});
  }
  const int q0 = place.q0 + first_row;
  store_fragment(at(x.dq, x.s.dq_strides, place.b, q0, place.h), x.s.dq_strides[1],
                 static_cast<int>(x.s.Tq) - q0, dq, static_cast<float>(x.s.scale), fragment);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <int kTile>
__global__ void __launch_bounds__(DqTile<kTile>::kThreads, 1)
    hopper_dq_kernel(const __grid_constant__ DqArguments x) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tile = DqTile<kTile>;
  extern __shared__ uint8_t hopper_tiles[];
  __shared__ typename Tile::Barriers barriers;
  auto& tiles = *reinterpret_cast<typename Tile::Tiles*>(align_tiles(hopper_tiles));
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();

  const DqPlace<kTile> place(x.s, x.heads_together);
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = __shfl_sync(~0u, thread / kWarpgroupSize, 0);  // alike in all lanes
  if (warpgroup == 0) {
    give_registers<Tile::kProducerRegisters>();
    if (thread == 0) load_dq_tiles<kTile>(tiles, barriers, x, place);
  } else {
    take_registers<Tile::kConsumerRegisters>();
    compute_dq<kTile>(tiles, barriers, x, place, (warpgroup - 1) * kWarpgroupRows);
  }
#endif
}

}  // namespace

bool hopper_dq_runs(int64_t D) {
  bool runs = false;
  with_tile<kHopperBackwardTileCount>(hopper_backward_tile(D), [&](auto index) {
    static const bool this_runs = hopper_kernel_runs(
        reinterpret_cast<const void*>(hopper_dq_kernel<index>), DqTile<index>::kSharedBytes);
    runs = this_runs;
  });
  return runs;
}

void hopper_attention_dq(bfloat16* dq, float* delta, const bfloat16* d_o, const bfloat16* o,
                         const float* lse, const bfloat16* q, const bfloat16* k, const bfloat16* v,
                         const AttentionShape& s, Stream stream) {
  with_tile<kHopperBackwardTileCount>(hopper_backward_tile(s.D), [&](auto index) {
    using Tile = DqTile<index>;
    const int64_t head_bytes = 2 * s.Tk * s.D * static_cast<int64_t>(sizeof(bfloat16));
    DqArguments x{};
    x.q = make_tile_map(q, s.q_strides, s.B, s.Tq, s.H, s.D, Tile::kQueries);
    x.k = make_tile_map(k, s.k_strides, s.B, s.Tk, s.Hk, s.D, Tile::kKeys);
    x.v = make_tile_map(v, s.v_strides, s.B, s.Tk, s.Hk, s.D, Tile::kKeys);
    x.d_o = make_tile_map(d_o, s.do_strides, s.B, s.Tq, s.H, s.D, Tile::kQueries);
    x.s = s;
    x.dq = dq;
    x.delta = delta;
    x.do_rows = d_o;
    x.o_rows = o;
    x.o_vectors = rows_aligned(o, s.o_strides);
    x.lse = lse;
    x.heads_together = heads_in_l2(head_bytes * s.Hk / s.H, s.B * s.H);
    launch(hopper_dq_kernel<index>, one_block_each(s.B * s.H * ceil_div(s.Tq, Tile::kQueries)),
           dim3(Tile::kThreads), size_t{Tile::kSharedBytes}, stream, x);
  });
}

}  // namespace quern::kernels::cuda
