// The shared memory of a block of Hopper's backward attention, and its copying warpgroup. One warp
// loads keys and queries. Two threads enforce the order in which dQ is added to the sums in global
// memory: they add it themselves, or tell the warpgroup that computes it when its turn has come.
#pragma once

#include "kernels/cuda/attention/hopper/attention_hopper_backward.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_query_sums.cuh"
#include "kernels/cuda/primitives/tma.cuh"

namespace quern::kernels::cuda {

// The warpgroups of a block: one that copies, two for the scores, one for dQ.
inline constexpr int kBackwardWarpgroups = 1 + kScoreWarpgroups + 1;

template <int kTile>
struct BackwardTile {
  static constexpr HopperBackwardTile tile = kHopperBackwardTiles[kTile];
  static constexpr int kD = tile.head_dim;
  static constexpr int kKeyStages = tile.key_stages;
  static constexpr int kStages = tile.stages;
  static constexpr int kKeys = tile.keys();
  static constexpr BackwardRoles kRoles = tile.roles;
  static constexpr int kScoreStages = tile.score_stages;
  static constexpr int kDqColumns = tile.dq_columns;
  static constexpr bool kDqDirect = tile.dq_direct();
  static constexpr int kDqBuffers = 2;  // for even and odd steps, or one for each part of dQ
  static constexpr int kParts = kDqDirect ? 1 : kD / kDqColumns;  // that are added, each in turn
  static constexpr int kPartFours = kBackwardQueries * kDqColumns / 4;  // float4 of a buffer
  static_assert(kD % kDqColumns == 0 && (kParts == 1 || kParts == kDqBuffers));
  // Registers a thread, multiples of 8: 65536 / 128 = 512 for the four warpgroups.
  static constexpr int kLeastCopyRegisters = 24;
  static constexpr int kDqRegisters = kDqColumns / 2 + 32;
  static constexpr int kScoreRegisters =
      (512 - kLeastCopyRegisters - kDqRegisters) / kScoreWarpgroups / 8 * 8;
  static constexpr int kCopyRegisters = 512 - kDqRegisters - kScoreWarpgroups * kScoreRegisters;
  static_assert(kCopyRegisters >= kLeastCopyRegisters && kCopyRegisters % 8 == 0);
  using Keys = SwizzledTile<kKeys, kD>;
  using Queries = SwizzledTile<kBackwardQueries, kD>;
  using Scores = SwizzledTile<kKeys, kBackwardQueries>;
  static_assert(Queries::kBytes % (8 * Queries::kRowBytes) == 0);  // where swizzling repeats

  struct Tiles {
    alignas(kTileAlignment) uint8_t k[kKeyStages][Keys::kBytes];
    alignas(kTileAlignment) uint8_t v[kKeyStages][Keys::kBytes];
    alignas(kTileAlignment) uint8_t q[kStages][Queries::kBytes];
    alignas(kTileAlignment) uint8_t d_o[kStages][Queries::kBytes];
    alignas(kTileAlignment) uint8_t ds[kScoreStages][Scores::kBytes];
    alignas(128) float4 dq[kDqBuffers][kDqDirect ? 1 : kPartFours];  // on the way out
  };
  static constexpr int kSharedBytes = sizeof(Tiles) + kTileAlignment;

  // Small objects, outside of the tiles' large alignment.
  struct Barriers {
    TileRing<kKeyStages> k, v;
    TileRing<kStages> q, d_o;   // Q with lse and delta; dO
    TileRing<kScoreStages> ds;  // dS^T, in place of P^T where one warpgroup passes it to the other
    MBarrier p_full[kScoreStages];
    TileRing<1> dq[kDqBuffers];                // where direct: the turn has come; dQ is added
    BackwardItem items[2 * kKeyStages];        // each arrives with its K
    uint32_t parts_arrived[kScoreWarpgroups];  // of dK and dV, see is_last_part
    alignas(16) float lse[kStages][kBackwardQueries], delta[kStages][kBackwardQueries];  // with q

    // The item of these keys. Each stage has two places, used in turn: one is filled anew only
    // after the stage's next keys have been released too. So a warp may read its item after it has
    // released the keys. All its lanes have read it before that next release, since every item has
    // a step, in which a warp's lanes meet.
    __device__ __forceinline__ BackwardItem& item(const RingPlace<kKeyStages>& keys) {
      return items[keys.parity * kKeyStages + keys.stage];
    }

    __device__ __forceinline__ void init() {
      constexpr bool kByResult = kRoles == BackwardRoles::by_result;
      constexpr uint32_t kWarps = kWarpgroupSize / kWarpSize;
      constexpr uint32_t kScoreWarps = kScoreWarpgroups * kWarps;
      k.init({1}, kScoreWarps + kWarps + kDqBuffers);  // see add_in_turn
      v.init({1}, kByResult ? kWarps : kScoreWarps);
      q.init({2}, kScoreWarps);
      d_o.init({1}, kScoreWarps);
      ds.init({kByResult ? kWarps : kScoreWarpgroups}, kWarps);
      for (auto& each : p_full) each.init(kWarps);
      for (auto& each : dq) each.init({kDqDirect ? 1 : kWarps}, kDqDirect ? kWarps : 1);
      barriers_ready();
    }
  };
  static_assert(kSharedBytes + sizeof(Barriers) <= 227 << 10);  // the limit of a block
};

struct BackwardArguments {
  CUtensorMap q, k, v, d_o;
  AttentionShape s;
  float scale_log2;  // scores in units of log2
  bool padded;       // heads are narrower than the tile
  BackwardPlan plan;
  bfloat16 *dq, *dk, *dv;
  const float* lse;
  BackwardScratch scratch;
  RotaryTable<float> rotary;
};

// The first tile of queries that sees one of a score warpgroup's keys; beyond the last one where
// none does.
template <int kTile>
__device__ __forceinline__ int first_tile_of(int warpgroup, const BackwardItem& item,
                                             const BackwardArguments& x) {
  const int k0 = item.key_tile * BackwardTile<kTile>::kKeys + warpgroup * kWarpgroupRows;
  if (k0 >= static_cast<int>(x.s.Tk)) return x.plan.query_tiles;
  return max(k0 - x.plan.diagonal, 0) / kBackwardQueries;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Loads one tile of queries with a whole warp: all lanes lse and delta, lane 0 the tiles.
template <int kTile>
__device__ __forceinline__ void load_queries(typename BackwardTile<kTile>::Tiles& tiles,
                                             typename BackwardTile<kTile>::Barriers& barriers,
                                             const BackwardArguments& x, int b, int h, int tile,
                                             RingPlace<BackwardTile<kTile>::kStages>& ring) {
  using Tile = BackwardTile<kTile>;
  constexpr int kRounds = kBackwardQueries / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int length = static_cast<int>(x.s.Tq), q0 = tile * kBackwardQueries, stage = ring.stage;
  const int64_t head = (b * x.s.H + h) * x.s.Tq;
  float lse[kRounds], delta[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int query = q0 + i * kWarpSize + lane;
    lse[i] = query < length ? x.lse[head + query] : -INFINITY;
    delta[i] = query < length ? x.scratch.delta[head + query] : 0.0f;
  }
  barriers.q.wait_empty(ring);
  if (lane == 0) {
    load_tile_async<typename Tile::Queries>(
        tiles.q[stage], x.q, barriers.q.expect(ring, Tile::Queries::kBytes), q0, h, b, x.padded);
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    barriers.lse[stage][i * kWarpSize + lane] = lse_log2(lse[i]);
    barriers.delta[stage][i * kWarpSize + lane] = delta[i];
  }
  __syncwarp();
  barriers.d_o.wait_empty(ring);
  if (lane == 0) {
    barriers.q.full[0][stage].arrive();
    load_tile_async<typename Tile::Queries>(tiles.d_o[stage], x.d_o,
                                            barriers.d_o.expect(ring, Tile::Queries::kBytes), q0, h,
                                            b, x.padded);
  }
  ring.advance();
}

// Takes items from the plan with a whole warp, in order, until none is left, and loads them. An
// item's first queries come before its keys, whose memory is free later.
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
    BackwardItem item(min(index, x.plan.items - 1), x.plan, static_cast<int>(x.s.Hk));
    if (!end) {
      load_queries<kTile>(tiles, barriers, x, item.b, item.first_head, item.first_tile, ring);
    }
    barriers.k.wait_empty(keys);
    if (leader) {
      if (end) item.key_tile = -1;
      barriers.item(keys) = item;
      if (end) {
        barriers.k.full[0][keys.stage].arrive();
      } else {
        const int k0 = item.key_tile * Tile::kKeys;
        load_tile_async<typename Tile::Keys>(tiles.k[keys.stage], x.k,
                                             barriers.k.expect(keys, Tile::Keys::kBytes), k0,
                                             item.kv_head, item.b, x.padded);
        barriers.v.wait_empty(keys);
        load_tile_async<typename Tile::Keys>(tiles.v[keys.stage], x.v,
                                             barriers.v.expect(keys, Tile::Keys::kBytes), k0,
                                             item.kv_head, item.b, x.padded);
      }
    }
    if (end) return;
    keys.advance();
    for (int h = item.first_head; h < item.end_head; ++h) {
      for (int tile = item.first_tile; tile < x.plan.query_tiles; ++tile) {
        if (h == item.first_head && tile == item.first_tile) continue;
        load_queries<kTile>(tiles, barriers, x, item.b, h, tile, ring);
      }
    }
    taken = take_item();  // not before: items are started in the order in which they are taken
  }
}

// Keeps the order of the contributions to dQ. Two threads call this. Each has a buffer and every
// second contribution, or one part of each.
template <int kTile>
__device__ __forceinline__ void add_in_turn(typename BackwardTile<kTile>::Tiles& tiles,
                                            typename BackwardTile<kTile>::Barriers& barriers,
                                            const BackwardArguments& x, int buffer) {
  using Tile = BackwardTile<kTile>;
  RingPlace<Tile::kKeyStages> keys;
  RingPlace<1> dq;
  int step = 0;
  while (true) {
    barriers.k.wait_full(keys);
    const BackwardItem item = barriers.item(keys);
    if (item.key_tile < 0) return;
    barriers.k.empty[keys.stage].arrive();
    keys.advance();
    for (int h = item.first_head; h < item.end_head; ++h) {
      const int64_t head = (item.b * x.s.H + h) * x.plan.query_tiles;
      for (int tile = item.first_tile; tile < x.plan.query_tiles; ++tile, ++step) {
        if (Tile::kParts == 1 && step % 2 != buffer) continue;
        uint32_t* const turn = x.scratch.turns + head + tile;
        const int before =
            x.plan.before(item.key_tile, tile, item.order);  // contributions before this one
        if (before > 0) wait_turn(turn, Tile::kParts * (x.s.deterministic ? before : 1));
        if constexpr (Tile::kDqDirect) {
          barriers.dq[buffer].full[0][0].arrive();
          barriers.dq[buffer].empty[0].wait(dq.parity);
        } else {
          float* const sum = x.scratch.dq + (head + tile) * (kBackwardQueries * Tile::kD) +
                             (Tile::kParts > 1 ? buffer * 4 * Tile::kPartFours : 0);
          barriers.dq[buffer].wait_full(dq);
          add_buffer(sum, tiles.dq[buffer], sizeof(tiles.dq[buffer]), before > 0,
                     [&] { barriers.dq[buffer].empty[0].arrive(); });
        }
        pass_turn(turn);
        dq.advance();
      }
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

}  // namespace quern::kernels::cuda
