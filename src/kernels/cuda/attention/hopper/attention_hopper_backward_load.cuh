// The shared memory of a block of Hopper's backward attention, and its copying warpgroup. One warp
// loads keys and queries; one thread a buffer adds the consumers' dQ to the sums in global memory.
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"
#include "kernels/cuda/primitives/tma.cuh"

namespace quern::kernels::cuda {

// Indices of the tiles in a stage of each ring.
inline constexpr int kTileK = 0, kTileV = 1;
inline constexpr int kTileQ = 0, kTileDo = 1;

inline constexpr int kBackwardThreads = hopper_threads(kBackwardConsumers);

template <int kTile>
struct BackwardTile {
  static constexpr HopperBackwardTile tile = kHopperBackwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  static constexpr int kKeyStages = tile.key_stages;
  static constexpr int kStages = tile.stages;
  static constexpr int kDqColumns = tile.dq_columns;
  static constexpr int kSumFloats = kBackwardQueries * kD;
  static constexpr int kParts = kD / kDqColumns;  // of dQ
  static constexpr int kPartFloats = kSumFloats / kParts;
  static constexpr int kSumBuffers = 2;  // one for each consumer, or for each part of dQ
  static_assert(kParts == 1 || kParts == kSumBuffers);
  using Keys = SwizzledTile<kBackwardKeys, kD>;
  using Queries = SwizzledTile<kBackwardQueries, kD>;
  using Scores = SwizzledTile<kBackwardKeys, kBackwardQueries>;
  static_assert(Queries::kBytes % (8 * Queries::kRowBytes) == 0);  // where swizzling repeats

  struct Tiles {
    alignas(kTileAlignment) uint8_t k[kKeyStages][Keys::kBytes];
    alignas(kTileAlignment) uint8_t v[kKeyStages][Keys::kBytes];
    alignas(kTileAlignment) uint8_t q[kStages][Queries::kBytes];
    alignas(kTileAlignment) uint8_t d_o[kStages][Queries::kBytes];
    alignas(kTileAlignment) uint8_t ds[2][Scores::kBytes];
    alignas(128) float4 dq[kSumBuffers][kPartFloats / 4];  // on the way out
  };
  static constexpr int kSharedBytes = sizeof(Tiles) + kTileAlignment;

  // Small objects, outside of the tiles' large alignment.
  struct Barriers {
    TileRing<kKeyStages, 2> keys;  // K; V
    TileRing<kStages, 2> queries;  // Q, lse and delta; dO
    TileRing<1> sums[kSumBuffers];
    int item[kKeyStages];                        // item of these keys, -1 at the end; with K
    uint32_t parts_arrived[kBackwardConsumers];  // of dK and dV, see is_last_part
    alignas(16) float lse[kStages][kBackwardQueries], delta[kStages][kBackwardQueries];  // with q

    __device__ __forceinline__ void init() {
      constexpr int kWarps = kBackwardConsumers * kWarpgroupSize / kWarpSize;
      keys.init({1, 1}, kWarps + kSumBuffers);  // see add_sums
      queries.init({2, 1}, kWarps);
      for (auto& each : sums) each.init({kWarps / kBackwardConsumers}, 1);
      barriers_ready();
    }
  };
  static_assert(kSharedBytes + sizeof(Barriers) <= 227 << 10);  // the limit of a block
};

struct BackwardArguments {
  CUtensorMap q, k, v, d_o;
  AttentionShape s;
  BackwardPlan plan;
  bfloat16 *dq, *dk, *dv;
  const float* lse;
  BackwardScratch scratch;
  RotaryTable<float> rotary;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Loads the queries of one item with a whole warp: all lanes lse and delta, lane 0 the tiles.
template <int kTile>
__device__ __forceinline__ void load_queries(typename BackwardTile<kTile>::Tiles& tiles,
                                             typename BackwardTile<kTile>::Barriers& barriers,
                                             const BackwardArguments& x, const BackwardItem& item,
                                             RingPlace<BackwardTile<kTile>::kStages>& ring) {
  using Queries = typename BackwardTile<kTile>::Queries;
  constexpr int kRounds = kBackwardQueries / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int length = static_cast<int>(x.s.Tq);
  for (int h = item.first_head; h < item.end_head; ++h) {
    const int64_t head = (item.b * x.s.H + h) * x.s.Tq;
    for (int tile = item.first_tile; tile < x.plan.query_tiles; ++tile) {
      const int q0 = tile * kBackwardQueries;
      float lse[kRounds], delta[kRounds];
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        const int query = q0 + i * kWarpSize + lane;
        lse[i] = query < length ? x.lse[head + query] : -INFINITY;
        delta[i] = query < length ? x.scratch.delta[head + query] : 0.0f;
      }
      const int stage = ring.stage;
      barriers.queries.wait_empty(ring);
      if (lane == 0) {
        load_tile_async(tiles.q[stage], x.q, barriers.queries.expect(ring, Queries::kBytes, kTileQ),
                        q0, h, item.b);
        load_tile_async(tiles.d_o[stage], x.d_o,
                        barriers.queries.expect(ring, Queries::kBytes, kTileDo), q0, h, item.b);
      }
#pragma unroll
      for (int i = 0; i < kRounds; ++i) {
        barriers.lse[stage][i * kWarpSize + lane] = lse_log2(lse[i]);
        barriers.delta[stage][i * kWarpSize + lane] = delta[i];
      }
      __syncwarp();
      if (lane == 0) barriers.queries.full[kTileQ][stage].arrive();
      ring.advance();
    }
  }
}

// Takes items from the plan with a whole warp, in order, until none is left, and loads them.
template <int kTile>
__device__ __forceinline__ void load_items(typename BackwardTile<kTile>::Tiles& tiles,
                                           typename BackwardTile<kTile>::Barriers& barriers,
                                           const BackwardArguments& x) {
  using Tile = BackwardTile<kTile>;
  const bool leader = threadIdx.x % kWarpSize == 0;
  const auto take_item = [&] {
    return leader ? static_cast<int>(atomicAdd(x.scratch.next, 1u)) : 0;
  };
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<Tile::kStages> ring;
  int taken = take_item();
  while (true) {
    const int index = __shfl_sync(~0u, taken, 0);
    const bool end = index >= x.plan.items;
    const BackwardItem item(index, x.plan, static_cast<int>(x.s.Hk));
    barriers.keys.wait_empty(keys);
    if (leader) {
      barriers.item[keys.stage] = end ? -1 : index;
      if (end) {
        barriers.keys.full[kTileK][keys.stage].arrive();
      } else {
        const int k0 = item.key_tile * kBackwardKeys;
        load_tile_async(tiles.k[keys.stage], x.k,
                        barriers.keys.expect(keys, Tile::Keys::kBytes, kTileK), k0, item.kv_head,
                        item.b);
        load_tile_async(tiles.v[keys.stage], x.v,
                        barriers.keys.expect(keys, Tile::Keys::kBytes, kTileV), k0, item.kv_head,
                        item.b);
      }
    }
    if (end) return;
    load_queries<kTile>(tiles, barriers, x, item, ring);
    taken = take_item();  // not before: items are started in the order in which they are taken
    keys.advance();
  }
}

// Adds the dQ that arrives in a buffer to the sums, in turn. One thread a buffer calls this.
template <int kTile>
__device__ __forceinline__ void add_sums(typename BackwardTile<kTile>::Tiles& tiles,
                                         typename BackwardTile<kTile>::Barriers& barriers,
                                         const BackwardArguments& x, int buffer) {
  using Tile = BackwardTile<kTile>;
  constexpr int kBytes = Tile::kPartFloats * static_cast<int>(sizeof(float));
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<1> sums;
  int step = 0;
  while (true) {
    barriers.keys.wait_full(keys, kTileK);
    const int index = barriers.item[keys.stage];
    if (index < 0) return;
    barriers.keys.empty[keys.stage].arrive();
    keys.advance();
    const BackwardItem item(index, x.plan, static_cast<int>(x.s.Hk));
    for (int h = item.first_head; h < item.end_head; ++h) {
      const int64_t head = item.b * x.s.H + h;
      for (int tile = item.first_tile; tile < x.plan.query_tiles; ++tile, ++step) {
        if (Tile::kParts == 1 && step % 2 != buffer) continue;
        const int64_t place = head * x.plan.query_tiles + tile;
        const int before = x.plan.before(item.key_tile, tile);  // contributions before this one
        float* const sum = x.scratch.dq + place * Tile::kSumFloats +
                           (Tile::kParts > 1 ? buffer * Tile::kPartFloats : 0);
        if (before > 0) {
          wait_turn(x.scratch.turns + place, Tile::kParts * (x.s.deterministic ? before : 1));
        }
        barriers.sums[buffer].wait_full(sums);
        if (before > 0) {
          add_bulk_async(sum, tiles.dq[buffer], kBytes);
        } else {
          store_bulk_async(sum, tiles.dq[buffer], kBytes);
        }
        commit_stores();
        wait_stores_read<0>();
        barriers.sums[buffer].empty[0].arrive();
        wait_stores<0>();
        pass_turn(x.scratch.turns + place);
        sums.advance();
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace quern::kernels::cuda
