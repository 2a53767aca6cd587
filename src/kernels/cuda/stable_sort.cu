// A least significant digit radix sort of n token ids. A block ranks a tile of tokens. Each warp
// takes neighbouring ones in order, 32 at a time; a warp match finds lanes with equal digits, so
// ranks need no atomics. One block sorts a single tile in shared memory; more tiles take two
// kernels a digit. Bound by latency: the number of dependent steps counts. For 32,768 tokens of a
// text (V 50,304) it takes 29.3 us in a graph on an H200, CUB's radix sort 31.5 us.
#include "kernels/cuda/stable_sort.h"

#include <bit>

#include "kernels/cuda/primitives/launch.cuh"

namespace quern::kernels::cuda {

namespace {

constexpr int kBits = 8, kDigits = 1 << kBits;
constexpr int kThreads = 1024, kWarps = kThreads / kWarpSize;
constexpr int kItems = 4;                    // tokens a thread ranks
constexpr int kTile = kThreads * kItems;     // tokens a block ranks
constexpr int kGroups = kThreads / kDigits;  // of threads that add up tiles side by side
constexpr unsigned kAllLanes = 0xffffffffu;
static_assert(kDigits == kSortDigits && kTile == kSortTile);
static_assert(kTile <= UINT16_MAX && kDigits * sizeof(uint16_t) == kWarpSize * sizeof(uint4));

// The input of a pass: in the first the ids themselves, and `order` is null. An id out of range
// becomes V, which sorts last.
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

__device__ __forceinline__ int digit_of(int32_t key, int shift) {
  return key >> shift & (kDigits - 1);
}

// Index of a thread's j-th token in its tile: a warp's tokens are neighbours.
__device__ __forceinline__ int tile_index(int j) {
  const int thread = static_cast<int>(threadIdx.x);
  return (thread / kWarpSize * kItems + j) * kWarpSize + thread % kWarpSize;
}

// before[w][d]: tokens of digit d that warps before w hold.
struct alignas(16) Ranks {
  uint16_t before[kWarps][kDigits];
};

// rank[j] = number of earlier tokens of the tile with the same digit, for digits < kDigits. Returns
// the number of tokens of digit d to thread d < kDigits. All threads take part.
__device__ __forceinline__ int rank_tile(int (&rank)[kItems], const int (&digit)[kItems],
                                         Ranks& ranks) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  uint16_t* const count = ranks.before[thread / kWarpSize];
  reinterpret_cast<uint4*>(count)[lane] = uint4{0, 0, 0, 0};
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const bool inside = digit[j] < kDigits;
    const unsigned peers = __match_any_sync(kAllLanes, digit[j]);
    const int below = __popc(peers & ((1u << lane) - 1));
    __syncwarp();  // the counts of the step before are written
    rank[j] = below + (inside ? count[digit[j]] : 0);
    __syncwarp();  // all have read before the first of the peers counts them
    if (inside && below == 0) count[digit[j]] = static_cast<uint16_t>(rank[j] + __popc(peers));
  }
  __syncthreads();
  int total = 0;
  if (thread < kDigits) {
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) {
      const int mine = ranks.before[w][thread];
      ranks.before[w][thread] = static_cast<uint16_t>(total);
      total += mine;
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    if (digit[j] < kDigits) rank[j] += count[digit[j]];
  }
  return total;
}

// start[d] = sum of the totals of the digits below d. Thread d < kDigits passes the total of d;
// start is shared memory. Ends with a barrier.
__device__ __forceinline__ void scan_digits(int32_t* start, int32_t total) {
  constexpr int kShare = kDigits / kWarpSize;  // neighbouring digits a lane of warp 0 adds up
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kDigits) start[thread] = total;
  __syncthreads();
  if (thread < kWarpSize) {
    int32_t totals[kShare], sum = 0;
#pragma unroll
    for (int e = 0; e < kShare; ++e) {
      totals[e] = start[thread * kShare + e];
      sum += totals[e];
    }
    int32_t below = sum;
#pragma unroll
    for (int reach = 1; reach < kWarpSize; reach *= 2) {  // Hillis and Steele, 1986
      const int32_t other = __shfl_up_sync(kAllLanes, below, reach);
      if (thread >= reach) below += other;
    }
    below -= sum;
#pragma unroll
    for (int e = 0; e < kShare; ++e) {
      start[thread * kShare + e] = below;
      below += totals[e];
    }
  }
  __syncthreads();
}

// All passes over n <= kTile tokens. One block.
__global__ void __launch_bounds__(kThreads)
    sort_tile(int32_t* keys, int32_t* order, Source from, int n, int bits) {
  __shared__ Ranks ranks;
  __shared__ int32_t start[kDigits], sorted_keys[kTile];
  __shared__ uint16_t sorted_order[kTile];
  int32_t key[kItems];
  int position[kItems], digit[kItems], rank[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    position[j] = tile_index(j);
    key[j] = position[j] < n ? from.key(position[j]) : 0;
  }
  for (int shift = 0; shift < bits; shift += kBits) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      digit[j] = tile_index(j) < n ? digit_of(key[j], shift) : kDigits;
    }
    scan_digits(start, rank_tile(rank, digit, ranks));
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (digit[j] == kDigits) continue;
      sorted_keys[start[digit[j]] + rank[j]] = key[j];
      sorted_order[start[digit[j]] + rank[j]] = static_cast<uint16_t>(position[j]);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (digit[j] == kDigits) continue;
      key[j] = sorted_keys[tile_index(j)];
      position[j] = sorted_order[tile_index(j)];
    }
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    if (tile_index(j) >= n) continue;
    keys[tile_index(j)] = key[j];
    order[tile_index(j)] = position[j];
  }
}

// counts[tile * kDigits + digit] = tokens of the tile with the digit. A block a tile.
__global__ void __launch_bounds__(kThreads)
    count_digits(int32_t* counts, Source from, int64_t n, int shift) {
  __shared__ int32_t count[kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kTile;
  if (thread < kDigits) count[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int64_t i = base + tile_index(j);
    // Integers: any order gives the same count.
    if (i < n) atomicAdd(&count[digit_of(from.key(i), shift)], 1);
  }
  __syncthreads();
  if (thread < kDigits) {
    counts[static_cast<int64_t>(blockIdx.x) * kDigits + thread] = count[thread];
  }
}

// Moves each token to its place. A block a tile; each sums the counts of all tiles itself, which
// even for millions of tokens is little beside their gradients.
__global__ void __launch_bounds__(kThreads)
    place(int32_t* keys, int32_t* order, const int32_t* counts, Source from, int64_t n, int shift) {
  __shared__ Ranks ranks;
  __shared__ int32_t start[kDigits], totals[kGroups][kDigits], earlier[kGroups][kDigits];
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kDigits, column = thread % kDigits;
  const int64_t base = static_cast<int64_t>(blockIdx.x) * kTile;
  int32_t key[kItems];
  int position[kItems], digit[kItems], rank[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int64_t i = base + tile_index(j);
    key[j] = i < n ? from.key(i) : 0;
    position[j] = i < n ? from.position(i) : 0;
    digit[j] = i < n ? digit_of(key[j], shift) : kDigits;
  }
  int32_t total = 0, before = 0;
#pragma unroll 4
  for (int tile = group; tile < static_cast<int>(gridDim.x); tile += kGroups) {
    const int32_t count = counts[static_cast<int64_t>(tile) * kDigits + column];
    total += count;
    before += tile < static_cast<int>(blockIdx.x) ? count : 0;
  }
  totals[group][column] = total;
  earlier[group][column] = before;
  rank_tile(rank, digit, ranks);  // its barriers make the sums of all groups visible
  if (thread < kDigits) {
    for (int g = 1; g < kGroups; ++g) {
      total += totals[g][thread];
      before += earlier[g][thread];
    }
  }
  scan_digits(start, total);
  if (thread < kDigits) start[thread] += before;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    if (digit[j] == kDigits) continue;
    const int32_t at = start[digit[j]] + rank[j];
    keys[at] = key[j];
    order[at] = position[j];
  }
}

}  // namespace

SortedIds stable_sort_ids(const int32_t* ids, int64_t n, int64_t V, void* scratch, Stream stream) {
  QUERN_CHECK(n <= INT32_MAX && V < INT32_MAX, "embedding: ", n, " tokens and ", V,
              " rows, expected below 2^31 of each");
  auto* const keys = static_cast<int32_t*>(scratch);  // two halves, written in turn
  int32_t* const order = keys + 2 * n;
  int32_t* const counts = order + 2 * n;
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(V)));  // of 0 .. V
  Source from{ids, nullptr, V};
  if (n <= kTile) {
    launch(sort_tile, 1, kThreads, 0, stream, keys, order, from, static_cast<int>(n), bits);
    return {keys, order};
  }
  const dim3 grid = one_block_each(ceil_div(n, kTile));
  for (int shift = 0, half = 0; shift < bits; shift += kBits, half = 1 - half) {
    launch(count_digits, grid, kThreads, 0, stream, counts, from, n, shift);
    launch(place, grid, kThreads, 0, stream, keys + half * n, order + half * n, counts, from, n,
           shift);
    from.keys = keys + half * n;
    from.order = order + half * n;
  }
  return {from.keys, from.order};
}

}  // namespace quern::kernels::cuda
