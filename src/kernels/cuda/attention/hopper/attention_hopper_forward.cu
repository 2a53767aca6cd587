// Flash attention for Hopper, forward: o (B, Tq, H, D) = softmax(scale q k^T) v (FlashAttention-3:
// Shah et al., 2024, algorithm 1 with section 3.2's overlap inside a warpgroup). Persistent blocks:
// a producer copies Q, K and V by TMA into rings in shared memory; consumer warpgroups of 64
// queries multiply by wgmma. Bound by the tensor cores: 4 Tq Tk D operations a head, half of that
// when causal. Close behind are the exponentials, 16 a cycle and SM.
#include "kernels/cuda/attention/attention_variants.h"
#include "kernels/cuda/attention/hopper/attention_hopper.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_forward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_softmax.cuh"

namespace quern::kernels::cuda {

namespace {

struct ForwardMaps {
  CUtensorMap q, k, v, o;
  bool whole_rows;  // k and v are maps of rows of all heads, not of heads
};

// Copies a tile of K or V. For heads of 72, 88, 104 and so on TMA is slow twice: it fills half of
// 32 bytes with zeros, and every second head begins at an odd multiple of 16 bytes. So where these
// heads lie side by side (`whole_rows`), the tile of an odd head begins `before` columns before it,
// at a multiple of 32 bytes if head 0 and the rows do, and the columns that a tile has beyond its
// head are the neighbours'. They do not count: Q is zero there, and the output is not written. But
// an infinite or NaN key makes NaN of its neighbours' scores too.
template <int kTile>
__device__ __forceinline__ void load_keys(uint8_t* tile, const CUtensorMap& map, bool whole_rows,
                                          MBarrier& full, int k0, int kv_head, int batch,
                                          const HopperShape& s, int before) {
  using F = ForwardTiles<kTile>;
  using Keys = typename F::Keys;
  if (!whole_rows) {
    load_tile_async<Keys>(tile, map, full, k0, kv_head, batch, s.D < F::kD);
    return;
  }
#pragma unroll 1
  for (int panel = 0; panel < Keys::kPanels; ++panel) {
    load_panel_async(tile + panel * Keys::kPanelBytes, map, full, k0,
                     kv_head * s.D - before + panel * Keys::kSpan, batch);
  }
}

// Run by one thread: takes the block's tiles of queries, and copies each one's Q, and its K and V
// from the last tile of keys to the first.
template <int kTile>
__device__ __forceinline__ void produce(const ForwardTiles<kTile>& shared,
                                        typename ForwardTiles<kTile>::Barriers& barriers,
                                        const ForwardMaps& maps, const HopperShape& s,
                                        const ForwardPlan& plan) {
  using F = ForwardTiles<kTile>;
  prefetch_map(maps.q);
  prefetch_map(maps.k);
  prefetch_map(maps.v);
  prefetch_map(maps.o);
  RingPlace<F::tile.q_stages> q;
  RingPlace<F::tile.stages> kv;
  const bool padded = s.D < F::kD;
  TilesOfBlock tiles(plan, static_cast<int>(blockIdx.x));
  for (QueryTile at; tiles.next(at);) {
    const int head = at.head % s.H, batch = at.head / s.H, kv_head = head / (s.H / s.Hk);
    const int q0 = at.tile * F::kQueries, key_tiles = F::key_tiles(s, q0, F::kQueries);
    const int before = maps.whole_rows && kv_head % 2 != 0 ? 8 : 0;
    barriers.q.wait_empty(q);
    barriers.item[q.stage] = {q0, head, batch, key_tiles, before};
    MBarrier& q_full = barriers.q.expect(q, F::kQBytes);
    for (int w = 0; w < F::tile.warpgroups; ++w) {
      load_tile_async<typename F::Queries>(shared.q(q.stage, w), maps.q, q_full,
                                           q0 + w * kWarpgroupRows, head, batch, padded, before);
    }
    q.advance();
    for (int j = key_tiles - 1; j >= 0; --j) {
      barriers.k.wait_empty(kv);
      load_keys<kTile>(shared.k(kv.stage), maps.k, maps.whole_rows,
                       barriers.k.expect(kv, F::Keys::kBytes), j * F::kKeys, kv_head, batch, s,
                       before);
      barriers.v.wait_empty(kv);
      load_keys<kTile>(shared.v(kv.stage), maps.v, maps.whole_rows,
                       barriers.v.expect(kv, F::Keys::kBytes), j * F::kKeys, kv_head, batch, s,
                       before);
      kv.advance();
    }
  }
  // The end of the consumers' loop: an item without Q.
  barriers.q.wait_empty(q);
  barriers.item[q.stage].key_tiles = -1;
  barriers.q.full[0][q.stage].arrive();
}

// One consumer warpgroup: computes 64 rows of the output.
template <int kTile>
struct Consumer {
  using F = ForwardTiles<kTile>;
  using Keys = typename F::Keys;
  using Scores = float[F::kKeys / 2];
  using Weights = uint32_t[F::kKeys / 16][4];
  using Output = float[F::kD / 2];
  const F& shared;
  typename F::Barriers& barriers;
  const HopperShape& s;
  int warpgroup, thread;  // of the consumers; of the warpgroup
  FragmentPlace place{thread};
  using ConsumerTurns = Turns<F::tile.warpgroups, F::tile.turns>;
  // Passed when a warpgroup's products have read Q, and when its output is in Q's place.
  using OutputPlace =
      NamedBarriers<F::tile.warpgroups, kWarpgroupSize, typename ConsumerTurns::MyTurn>;
  ConsumerTurns turns{warpgroup};
  RingPlace<F::tile.q_stages> q;
  RingPlace<F::tile.stages> k, v;

  // S = Q K^T
  __device__ __forceinline__ void issue_scores(Scores& scores) const {
    barriers.k.wait_full(k);
    const uint64_t queries = F::Queries::k_major(shared.q(q.stage, warpgroup));
    const uint64_t keys = Keys::k_major(shared.k(k.stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < F::kD / kWgmmaDepth; ++i) {
      wgmma<Major::kK, Major::kK>(scores, queries + F::Queries::k_step(i), keys + Keys::k_step(i),
                                  i > 0);
    }
    wgmma_commit();
  }
  // O += P V
  __device__ __forceinline__ void issue_output(Output& out, const Weights& p) const {
    barriers.v.wait_full(v);
    const uint64_t values = Keys::mn_major(shared.v(v.stage));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < F::kKeys / kWgmmaDepth; ++i) {
      wgmma<Major::kMN>(out, p[i], values + Keys::mn_step(i), true);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void release_keys() {
    barriers.k.release(k.stage, thread);
    k.advance();
  }
  __device__ __forceinline__ void release_values() {
    barriers.v.release(v.stage, thread);
    v.advance();
  }

  // Skips the first `tiles` steps: this warpgroup's queries see none of their keys.
  __device__ __forceinline__ void skip(int tiles) {
    for (int i = 0; i < tiles; ++i) {
      barriers.k.wait_full(k);  // else the release could count for the previous use
      release_keys();
      barriers.v.wait_full(v);
      release_values();
      turns.wait();
      turns.pass();
    }
  }

  // Scores of keys that a query does not see become -inf. Only tiles at the diagonal or at the end
  // of the keys have any.
  __device__ __forceinline__ void mask(Scores& scores, int q0, int k0) const {
    if (k0 + F::kKeys <= s.keys_of(q0)) return;
    const int visible[2] = {s.keys_of(q0 + place.row) - k0 - place.column,
                            s.keys_of(q0 + place.row + 8) - k0 - place.column};
    mask_columns(scores, visible);
  }

  // Moves the columns from the ninth on to the first: TMA cannot store from a column below 0 on.
  __device__ __forceinline__ static void drop_first_columns(uint32_t (&rounded)[F::kD / 16][4]) {
#pragma unroll
    for (int j = 0; j < F::kD / 16; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rounded[j][r] = rounded[j][2 + r];
        if (j + 1 < F::kD / 16) rounded[j][2 + r] = rounded[j + 1][r];
      }
    }
  }

  // Writes the rows out through Q's memory, which is free once this warpgroup's products are done.
  __device__ __forceinline__ void store(const ForwardMaps& maps, float* lse, Output& out,
                                        RowSoftmax& softmax, const ForwardItem& item, int q0) {
    float inverse[2];
    softmax.finish(inverse);
    scale_rows(out, inverse);
    uint8_t* const tile = shared.q(q.stage, warpgroup);
    uint32_t rounded[F::kD / 16][4];
    pack_operand(rounded, out);
    if (item.before > 0) drop_first_columns(rounded);
    const int row = thread / kWarpSize * 16 + thread % 16, column = thread % kWarpSize / 16 * 8;
    OutputPlace::sync(warpgroup);
#pragma unroll
    for (int j = 0; j < F::kD / 16; ++j) {
      store_matrices(shared_address(tile) + F::Queries::offset(row, 16 * j + column), rounded[j]);
    }
    fence_async_proxy();
    OutputPlace::sync(warpgroup);
    if (thread == 0) {
      store_tile_async<typename F::Queries>(maps.o, tile, q0, item.head, item.batch, s.D < F::kD);
      commit_stores();
      wait_stores_read<0>();
      barriers.q.empty[q.stage].arrive();
    }
    q.advance();
    if (place.column == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) store_lse(lse, softmax.lse(i), item, q0 + 8 * i);
    }
    __syncwarp();  // the next products need whole warps
  }
  __device__ __forceinline__ void store_lse(float* lse, float value, const ForwardItem& item,
                                            int q0) const {
    const int query = q0 + place.row;
    if (query >= s.Tq) return;
    lse[int64_t{item.batch * s.H + item.head} * s.Tq + query] = value;
  }

  __device__ __forceinline__ void run(const ForwardMaps& maps, float* lse) {
    turns.begin();
    while (true) {
      barriers.q.wait_full(q);
      const ForwardItem item = barriers.item[q.stage];
      if (item.key_tiles < 0) break;
      const int q0 = item.q0 + warpgroup * kWarpgroupRows;
      Output out = {};
      RowSoftmax softmax;
      if (item.key_tiles > 0) {
        const int key_tiles = max(1, F::key_tiles(s, q0, kWarpgroupRows));
        skip(item.key_tiles - key_tiles);
        attend(out, softmax, q0, key_tiles);
      }
      store(maps, lse, out, softmax, item, q0);
    }
    turns.end();
  }

  // Walks the tiles from the last to the first. The first loop takes the tiles with a mask, down to
  // the one with the last key of query q0. Later queries see that key too, so each row has a base
  // by then. The second loop's tiles are visible to all. If q0 sees no key, every tile is masked.
  __device__ __forceinline__ void attend(Output& out, RowSoftmax& softmax, int q0, int key_tiles) {
    Scores scores;
    Weights p;
    issue_scores(scores);
    wgmma_wait<0>();
    settle(scores);
    release_keys();
    mask(scores, q0, (key_tiles - 1) * F::kKeys);
    softmax.update(scores, s.scale_log2);
    pack_operand(p, scores);
    const int last_masked = (s.keys_of(q0) - 1) / F::kKeys;
    int j = key_tiles - 2;
#pragma unroll 1
    for (; j >= last_masked; --j) {
      step(scores, p, out, softmax, [&] {
        mask(scores, q0, j * F::kKeys);
        softmax.update(scores, s.scale_log2);
        return true;
      });
    }
    softmax.make_base_finite();
#pragma unroll 1
    for (; j >= 0; --j) {
      step(scores, p, out, softmax, [&] { return softmax.update_visible(scores, s.scale_log2); });
    }
    settle(p);
    settle(out);
    issue_output(out, p);
    wgmma_wait<0>();
    settle(out);
    settle(p);
    release_values();
  }

  // The products of one tile's scores and of the previous tile's output run together. The latter
  // overlap this tile's softmax (FlashAttention-3, algorithm 2). update() replaces scores by
  // weights and returns whether the base moved.
  template <class Update>
  __device__ __forceinline__ void step(Scores& scores, Weights& p, Output& out,
                                       const RowSoftmax& softmax, Update update) {
    settle(p);
    settle(out);
    turns.wait();
    issue_scores(scores);
    issue_output(out, p);
    turns.pass();
    wgmma_wait<1>();
    settle(scores);
    release_keys();
    const bool moved = update();
    finish_before_wait(softmax.sum[0] + softmax.sum[1]);
    wgmma_wait<0>();
    settle(out);
    settle(p);
    release_values();
    if (moved) scale_rows(out, softmax.rescale);
    pack_operand(p, scores);
  }
};

template <int kTile>
__global__ void __launch_bounds__(hopper_threads(kHopperForwardTiles[kTile].warpgroups), 1)
    hopper_attention_forward_kernel(const __grid_constant__ ForwardMaps maps, float* lse,
                                    const __grid_constant__ HopperShape s,
                                    const __grid_constant__ ForwardPlan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using F = ForwardTiles<kTile>;
  extern __shared__ uint8_t attention_tiles[];
  __shared__ typename F::Barriers barriers;
  const F shared{align_tiles(attention_tiles)};
  const int thread = static_cast<int>(threadIdx.x), warpgroup = start_block(barriers);
  if (warpgroup == 0) {
    begin_producing<F::tile.warpgroups>();
    if (thread == 0) produce(shared, barriers, maps, s, plan);
  } else {
    begin_consuming<F::tile.warpgroups>();
    Consumer<kTile> consumer{shared, barriers, s, warpgroup - 1, thread % kWarpgroupSize};
    consumer.run(maps, lse);
  }
#endif
}

template <int kTile>
bool forward_tile_runs() {
  static const bool runs =
      hopper_kernel_runs(reinterpret_cast<const void*>(hopper_attention_forward_kernel<kTile>),
                         ForwardTiles<kTile>::kSharedBytes);
  return runs;
}

}  // namespace

const char* hopper_attention_refusal(const AttentionForward<bfloat16>& x, const AttentionShape& s) {
  if (s.D <= kPortableForwardHead) return kPortableIsFaster;
  if (!(s.scale > 0.0)) return "the scale is not positive, as Hopper's own kernel needs";
  if (!hopper_extents_fit(s)) return kHopperExtents;
  if (!tma_takes(x.q, s.q_strides, s.B, s.Tq, s.H, s.D) ||
      !tma_takes(x.o, s.o_strides, s.B, s.Tq, s.H, s.D) ||
      !tma_takes(x.k, s.k_strides, s.B, s.Tk, s.Hk, s.D) ||
      !tma_takes(x.v, s.v_strides, s.B, s.Tk, s.Hk, s.D)) {
    return kHopperRows;
  }
  bool runs = false;
  with_tile(kHopperForwardTiles, hopper_forward_tile(s),
            [&](auto tile) { runs = forward_tile_runs<tile>(); });
  return runs ? nullptr : kNoHopper;
}

void hopper_attention_forward(const AttentionForward<bfloat16>& x, const AttentionShape& s,
                              Stream stream) {
  check_attention(s);
  with_tile(kHopperForwardTiles, hopper_forward_tile(s), [&](auto tile) {
    using F = ForwardTiles<tile>;
    const auto side_by_side = [&](const int64_t(&strides)[3]) {
      return s.Hk > 1 && strides[2] == s.D && s.Tk > 1 &&
             (s.B == 1 || strides[0] == s.Tk * strides[1]);
    };
    const bool rows = s.D % 16 != 0 && side_by_side(s.k_strides) && side_by_side(s.v_strides);
    const auto keys_map = [&](const bfloat16* keys, const int64_t(&strides)[3]) {
      if (!rows) return make_tile_map(keys, strides, s.B, s.Tk, s.Hk, s.D, F::kKeys, F::kD);
      return make_panel_map({keys, s.B, s.Tk, s.Hk * s.D, strides[1]}, F::kKeys, F::Keys::kSpan);
    };
    const ForwardMaps maps = {
        make_tile_map(x.q, s.q_strides, s.B, s.Tq, s.H, s.D, kWarpgroupRows, F::kD),
        keys_map(x.k, s.k_strides), keys_map(x.v, s.v_strides),
        make_tile_map(x.o, s.o_strides, s.B, s.Tq, s.H, s.D, kWarpgroupRows, F::kD), rows};
    const ForwardPlan plan(s, F::tile, device_traits().multiprocessors);
    launch_persistent(hopper_attention_forward_kernel<tile>, plan.blocks, F::tile.warpgroups,
                      F::kSharedBytes, stream, maps, x.lse, HopperShape(s), plan);
  });
}

}  // namespace quern::kernels::cuda
