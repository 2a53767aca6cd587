// How the blocks of the portable tensor-core attention's backward, each of which has a tile of
// keys, sum their shares of dQ: into floats in global memory, one key tile after the other.
//
// For every head the key tiles form a queue, the first keys in front, which have most queries. Each
// warp adds its part of a tile of dQ after the same warp of the block before it in the queue, which
// says how far it has come: so every sum has one order, and the result the same bits each time. All
// blocks of a head walk over the queries alike, from the last to the first that sees their keys, so
// a block follows the one before it at a distance and rarely waits. It cannot wait for ever: places
// in the queue are handed out to blocks as they start, so what a block waits for has started.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_mma.cuh"

namespace quern::kernels::cuda {

// What the kernels of a backward hand each other.
struct MmaBackwardScratch {
  float2* statistics = nullptr;  // (B, H, Tq): logsumexp in units of log2, delta
  // dQ before the scale: (B, H, query tiles, parts) tiles of columns x features, in the order of
  // the accumulators: (warp, fragment, lane, 4).
  float* dq_sum = nullptr;
  uint32_t* ticket = nullptr;    // blocks started; after it:
  uint32_t* progress = nullptr;  // (B Hk parts, key tiles, warps): steps done
};

// A walk over tiles of queries: for each query head of a group the last tile first, down to
// `first`.
struct QueryWalk {
  int head = 0, tile;  // head: within the group

  __device__ explicit QueryWalk(int tiles) : tile(tiles - 1) {}
  __device__ __forceinline__ void advance(int first, int tiles) {
    if (tile-- > first) return;
    tile = tiles - 1;
    ++head;
  }
  // Grows along the walk, and is the same for every tile of keys.
  __device__ __forceinline__ uint32_t step(int tiles) const {
    return static_cast<uint32_t>(head * tiles + tiles - 1 - tile);
  }
};

// The first tile of queries that sees a tile of keys from k0 on; `tiles` or more if none does.
__device__ __forceinline__ int first_query_tile(const AttentionShape& s, int k0, int columns) {
  const int first = k0 + static_cast<int>(s.Tq - s.Tk);
  return s.causal && first > 0 ? first / columns : 0;
}

// A warp's place in a queue: `own` is its progress, and `before` that of the warp before, null for
// the first. Without a queue both are null.
class Turn {
 public:
  __device__ Turn(const uint32_t* before, uint32_t* own) : before_(before), own_(own) {}

  // Waits until the block before has done `step`.
  __device__ __forceinline__ void wait(uint32_t step) {
    while (before_ != nullptr && known_ <= step) {
      known_ = __shfl_sync(0xffffffffu, load_acquire(before_), 0);
      __syncwarp();  // what lane 0 has acquired holds for the others
    }
  }
  // Tells the block behind that what the warp did up to `step` can be seen.
  __device__ __forceinline__ void publish(uint32_t step) {
    if (own_ == nullptr) return;
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) store_release(own_, step + 1);
  }

 private:
  const uint32_t* before_;
  uint32_t* own_;
  uint32_t known_ = 0;  // steps that the block before was seen to have done
};

// Which tile of keys a block has, for which part of the features, and which tiles of queries it
// walks over: `steps` of them, those from first_tile on of each query head that shares the keys.
template <int kTile>
struct BackwardPlace {
  static constexpr AttentionTile tile_size = kMmaBackwardTiles[kTile];
  static constexpr int kParts = tile_size.head_dim / mma_backward_features(tile_size);
  static constexpr int kWarps = mma_backward_threads(tile_size) / kWarpSize;

  int queue, tile, key_tiles;  // the tile's place among key_tiles; the queue is of a head and part
  int part, b, kv_head, first_head, k0;
  int query_tiles, first_tile, steps;

  __device__ BackwardPlace(const AttentionShape& s, unsigned ticket) {
    const int Tq = static_cast<int>(s.Tq), group = static_cast<int>(s.H / s.Hk);
    const int64_t queues = s.B * s.Hk * kParts;
    const int64_t together = ceil_div(kMmaGroupQueries, max(Tq, 1)) * kParts;
    key_tiles = static_cast<int>(ceil_div(s.Tk, tile_size.rows));
    query_tiles = static_cast<int>(ceil_div(Tq, tile_size.columns));
    const TileOrder order(ticket, queues, key_tiles, static_cast<unsigned>(min(together, queues)));
    queue = order.head;
    tile = order.tile;
    part = queue % kParts;
    b = queue / kParts / static_cast<int>(s.Hk);
    kv_head = queue / kParts % static_cast<int>(s.Hk);
    first_head = kv_head * group;
    k0 = tile * tile_size.rows;
    first_tile = first_query_tile(s, k0, tile_size.columns);
    steps = group * max(query_tiles - first_tile, 0);
  }
  // Without `progress` there are no turns.
  __device__ __forceinline__ Turn turn(uint32_t* progress) const {
    if (progress == nullptr) return Turn(nullptr, nullptr);
    uint32_t* const own =
        progress + (static_cast<int64_t>(queue) * key_tiles + tile) * kWarps + warp_index();
    return Turn(tile > 0 ? own - kWarps : nullptr, own);
  }
};

// A warp's part of a tile of dQ.
template <int kTile>
struct DqPart {
  static constexpr AttentionTile tile = kMmaBackwardTiles[kTile];
  static constexpr MmaDqPart part = mma_dq_part(tile);
  static constexpr int kFeatures = mma_backward_features(tile);
  static constexpr int kAcross = kFeatures / part.features;  // warps side by side
  static constexpr int kM = part.queries / kMmaRowsPerFragment;
  static constexpr int kN = part.features / 8;
  static constexpr int kTileFloats = tile.columns * kFeatures;
  static_assert(part.queries > 0);

  static __device__ __forceinline__ int first_query() {
    return warp_index() / kAcross * part.queries;
  }
  static __device__ __forceinline__ int first_feature() {
    return warp_index() % kAcross * part.features;
  }
  // Of fragment (0, 0), from the tile's start. The next is 4 floats a lane on.
  static __device__ __forceinline__ int offset() {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    return warp_index() * (kTileFloats / (mma_backward_threads(tile) / kWarpSize)) + lane * 4;
  }
};

// A's fragments of dS, of which dS^T lies in shared memory. `address`: of the first key, at the
// warp's first query, plus column_lane().
template <int kColumns>
struct TransposedRows {
  uint32_t address;
  __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
    ldmatrix_transposed(a, address + k * 16 * SharedRows<kColumns>::kBytes + m * 32);
  }
};

// sum = dS K for the warp's part. `ds`: address of dS^T, a row for each key; `keys`: of K's rows,
// at the first feature of the block.
template <int kTile>
__device__ __forceinline__ void multiply_dq(float (&sum)[DqPart<kTile>::kM][DqPart<kTile>::kN][4],
                                            uint32_t ds, uint32_t keys) {
  using Part = DqPart<kTile>;
  constexpr AttentionTile tile = Part::tile;
  constexpr int kSteps = tile.rows / 16 < 4 ? tile.rows / 16 : 4;  // side by side
  using DsRows = SharedRows<tile.columns>;
  using KeyRows = SharedRows<tile.head_dim>;
  clear(sum);
  ds += DsRows::column_lane() + Part::first_query() * 2;
  keys += KeyRows::square_lane() + Part::first_feature() * 2;
#pragma unroll 1
  for (int key = 0; key < tile.rows; key += 16 * kSteps) {
    multiply_add<tile.head_dim, Part::part.features, kSteps>(
        sum, TransposedRows<tile.columns>{ds + key * DsRows::kBytes}, keys + key * KeyRows::kBytes);
  }
}

// dq_sum (+)= sum; `dq_sum` at the warp's offset().
template <int kM, int kN>
__device__ __forceinline__ void write_dq(float* dq_sum, const float (&sum)[kM][kN][4], bool first) {
  const auto each = [&](auto write) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) write(dq_sum + (m * kN + n) * (4 * kWarpSize), sum[m][n]);
    }
  };
  if (first) {
    each([](float* p, const float(&x)[4]) { store_global_16(p, x); });
  } else {
    each([](float* p, const float(&x)[4]) { add_global_16(p, x); });
  }
}

}  // namespace quern::kernels::cuda
