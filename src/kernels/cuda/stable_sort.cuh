// Sorts token positions by token id, equal ids in the order of their positions: a least significant
// digit radix sort. A warp owns a tile of neighbouring tokens and takes it in order, 32 at a time;
// lanes that hold equal digits find each other by a warp match, so ranks need no atomics.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/launch.cuh"

namespace quern::kernels::cuda {

namespace sorting {

inline constexpr int kBits = 8, kDigits = 1 << kBits;
inline constexpr int kTile = 1024;  // tokens a warp ranks
inline constexpr int kWarps = 4;    // tiles a block
inline constexpr int kScanThreads = 1024;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// What sort pass `shift / kBits` reads: the ids themselves (out of range: V, which sorts last) in
// the first pass, when `order` is null.
struct Source {
  const int32_t* keys;
  const int32_t* order;
  int64_t V;

  __device__ __forceinline__ int32_t key(int64_t i) const {
    const int32_t id = keys[i];
    return id >= 0 && id < V ? id : static_cast<int32_t>(V);
  }
  __device__ __forceinline__ int32_t position(int64_t i) const {
    return order != nullptr ? order[i] : static_cast<int32_t>(i);
  }
};

// Walks the warp's tile in order: step(lane is inside, its place, its digit, the lanes of the same
// digit). All lanes make every step.
template <class Step>
__device__ __forceinline__ void for_tile(const Source& from, int64_t n, int64_t tile, int shift,
                                         Step step) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int64_t base = tile * kTile; base < (tile + 1) * kTile && base < n; base += kWarpSize) {
    const int64_t i = base + lane;
    const bool inside = i < n;
    const int digit = inside ? from.key(i) >> shift & (kDigits - 1) : kDigits;  // kDigits: nobody's
    const unsigned peers = __match_any_sync(kAllLanes, digit);
    step(inside, i, digit, peers);
    __syncwarp();  // the next step sees this one's counts
  }
}

// counts[digit * tiles + tile] = tokens of the tile with the digit. blockDim is (32, kWarps).
static __global__ void count_digits(int32_t* counts, Source from, int64_t n, int64_t tiles,
                                    int shift) {
  __shared__ int32_t of_warp[kWarps][kDigits];
  int32_t* const count = of_warp[threadIdx.y];
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (tile >= tiles) return;
  for (int d = lane; d < kDigits; d += kWarpSize) count[d] = 0;
  __syncwarp();
  for_tile(from, n, tile, shift, [&](bool inside, int64_t, int digit, unsigned peers) {
    if (inside && lane == __ffs(static_cast<int>(peers)) - 1) count[digit] += __popc(peers);
  });
  for (int d = lane; d < kDigits; d += kWarpSize) counts[d * tiles + tile] = count[d];
}

// counts[e] = sum of counts[0 .. e): where each (digit, tile) begins in the output. One block.
static __global__ void scan_counts(int32_t* counts, int64_t entries) {
  __shared__ int32_t sums[kScanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t share = ceil_div(entries, kScanThreads);
  const int64_t begin = thread * share < entries ? thread * share : entries;
  const int64_t end = begin + share < entries ? begin + share : entries;
  int32_t sum = 0;
  for (int64_t e = begin; e < end; ++e) sum += counts[e];
  sums[thread] = sum;
  for (int reach = 1; reach < kScanThreads; reach *= 2) {  // Hillis and Steele, 1986
    __syncthreads();
    const int32_t before = thread >= reach ? sums[thread - reach] : 0;
    __syncthreads();
    sums[thread] += before;
  }
  int32_t running = sums[thread] - sum;
  for (int64_t e = begin; e < end; ++e) {
    const int32_t count = counts[e];
    counts[e] = running;
    running += count;
  }
}

// Moves each token to its place. blockDim is (32, kWarps).
static __global__ void place(int32_t* keys, int32_t* order, const int32_t* starts, Source from,
                             int64_t n, int64_t tiles, int shift) {
  __shared__ int32_t of_warp[kWarps][kDigits];
  int32_t* const next = of_warp[threadIdx.y];
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (tile >= tiles) return;
  for (int d = lane; d < kDigits; d += kWarpSize) next[d] = starts[d * tiles + tile];
  __syncwarp();
  for_tile(from, n, tile, shift, [&](bool inside, int64_t i, int digit, unsigned peers) {
    const int rank = __popc(peers & ((1u << lane) - 1));
    const int32_t start = inside ? next[digit] : 0;
    __syncwarp();  // all have read before the first of the peers moves the start
    if (!inside) return;
    keys[start + rank] = from.key(i);
    order[start + rank] = from.position(i);
    if (rank == 0) next[digit] = start + __popc(peers);
  });
}

}  // namespace sorting

struct SortedIds {
  const int32_t* keys;   // ids, ascending; V for each id outside [0, V)
  const int32_t* order;  // the positions they came from
};

// Bytes: two arrays of keys, two of positions, and the counts.
inline int64_t stable_sort_scratch(int64_t n) {
  const int64_t tiles = ceil_div(n, sorting::kTile);
  return (4 * n + sorting::kDigits * tiles) * static_cast<int64_t>(sizeof(int32_t));
}

// n >= 1, V < 2^31. Everything returned lies in `scratch` (4-byte aligned).
inline SortedIds stable_sort_ids(const int32_t* ids, int64_t n, int64_t V, void* scratch,
                                 Stream stream) {
  QUERN_CHECK(n <= INT32_MAX && V < INT32_MAX, "embedding: ", n, " tokens and ", V,
              " rows, expected below 2^31 of each");
  const int64_t tiles = ceil_div(n, sorting::kTile);
  auto* const keys = static_cast<int32_t*>(scratch);  // two halves, written in turn
  int32_t* const order = keys + 2 * n;
  int32_t* const counts = order + 2 * n;
  const dim3 grid = one_block_each(ceil_div(tiles, sorting::kWarps));
  const dim3 block(kWarpSize, sorting::kWarps);
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(V)));  // of 0 .. V

  sorting::Source from{ids, nullptr, V};
  for (int shift = 0, half = 0; shift < bits; shift += sorting::kBits, half = 1 - half) {
    launch(sorting::count_digits, grid, block, 0, stream, counts, from, n, tiles, shift);
    launch(sorting::scan_counts, 1, sorting::kScanThreads, 0, stream, counts,
           sorting::kDigits * tiles);
    launch(sorting::place, grid, block, 0, stream, keys + half * n, order + half * n, counts, from,
           n, tiles, shift);
    from.keys = keys + half * n;
    from.order = order + half * n;
  }
  return {from.keys, from.order};
}

}  // namespace quern::kernels::cuda
