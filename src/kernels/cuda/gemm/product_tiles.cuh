// A BF16 product D = A B on Hopper. Other warps finish each tile of D while the next tile is
// multiplied. Persistent blocks of 16 warps: two warpgroups multiply by wgmma, 64 rows each, and
// leave D in shared memory, rounded to BF16. The next six warps finish it with the caller's code. A
// thread of the warp after them copies tiles of A and B by TMA into a ring in shared memory. Bound
// by the tensor cores, with the bandwidth of shared memory close behind: the traffic of the
// finishing warps slows the product down.
//
// The two blocks of a cluster have tiles below each other. Each fetches half of their B for both.
#pragma once

#include <type_traits>

#include "kernels/cuda/primitives/launch_hopper.cuh"
#include "kernels/cuda/primitives/tile_ring.cuh"
#include "kernels/cuda/primitives/tma.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace quern::kernels::cuda {

inline constexpr int kProductDepth = 64;  // of K, a stage of the ring
inline constexpr int kProductStages = 4;
inline constexpr int kMultipliers = kProductRows / kWarpgroupRows;  // warpgroups
inline constexpr int kFinishers = 6, kFinishThreads = kFinishers * kWarpSize;
inline constexpr int kProductThreads = 4 * kWarpgroupSize;
// Registers a thread, of the 128 that each has at first. (Tiles of 256 columns need more in one
// instruction, which the compiler refuses; three multiplying warpgroups would leave too few
// finishing warps.)
inline constexpr int kMultiplierRegisters = 144, kOtherRegisters = 112;
static_assert(kMultipliers * kWarpgroupSize + kFinishThreads < kProductThreads);

using ProductOutput = SwizzledTile<kProductRows, kProductColumns>;  // D

struct ProductBarriers {
  TileRing<kProductStages> ring;  // of A and B
  TileRing<1> output;             // D

  __device__ void init() {
    constexpr int kWarps = kMultipliers * kWarpgroupSize / kWarpSize;
    ring.init({1}, kProductCluster * kWarps);
    output.init({kWarps}, kFinishers);
    barriers_ready();
  }
};

// kMajor: how B is stored.
template <Major kMajor>
struct ProductTiles {
  using A = SwizzledTile<kProductRows, kProductDepth>;
  using B = std::conditional_t<kMajor == Major::kK, SwizzledTile<kProductColumns, kProductDepth>,
                               SwizzledTile<kProductDepth, kProductColumns>>;
  static constexpr int kStageBytes = A::kBytes + B::kBytes;
  static constexpr int kSharedBytes =
      kTileAlignment + kProductStages * kStageBytes + ProductOutput::kBytes;
  static_assert(kSharedBytes + sizeof(ProductBarriers) <= 227 << 10,
                "compute capability 9.0's limit");

  uint8_t* memory;
  __device__ __forceinline__ uint8_t* a(int stage) const { return memory + stage * kStageBytes; }
  __device__ __forceinline__ uint8_t* b(int stage) const { return a(stage) + A::kBytes; }
  __device__ __forceinline__ uint8_t* output() const { return a(kProductStages); }
};

// The tiles of D that the clusters take in turn: down kGroup pairs of tiles, then on to the next
// column, then to the next group of rows. Neighbours share rows of A and columns of B, so that the
// inputs of concurrent tiles fit in L2.
struct ProductSchedule {
  static constexpr int kGroup = 8;
  int pairs, columns, blocks;  // of tiles; of K

  struct Item {
    int m0, n0;  // of this block's tile; n0 counts columns of tiles
  };
  __device__ __forceinline__ int units() const { return pairs * columns; }
  __device__ __forceinline__ Item item(int unit) const {
    const int first = unit / (kGroup * columns) * kGroup;
    const int rows = min(kGroup, pairs - first), place = unit - first * columns;
    const int pair = first + place % rows;
    return {(pair * kProductCluster + static_cast<int>(cluster_rank())) * kProductRows,
            place / rows};
  }
  // Calls f(item) for each item of this block.
  template <class F>
  __device__ __forceinline__ void for_each(F f) const {
    const int clusters = static_cast<int>(gridDim.x) / kProductCluster;
    for (int unit = static_cast<int>(blockIdx.x) / kProductCluster; unit < units();
         unit += clusters) {
      f(item(unit));
    }
  }
};

// Run by one thread. load_b(stage's B, barrier, item, k) loads this block's half, to both blocks.
template <class Tiles, class LoadB>
__device__ __forceinline__ void produce(const Tiles& shared, ProductBarriers& barriers,
                                        const ProductSchedule& schedule, const CUtensorMap& a,
                                        LoadB load_b) {
  RingPlace<kProductStages> ring;
  schedule.for_each([&](const ProductSchedule::Item& item) {
    for (int block = 0; block < schedule.blocks; ++block) {
      barriers.ring.wait_empty(ring);
      MBarrier& full = barriers.ring.expect(ring, Tiles::kStageBytes);
      load_panel_async(shared.a(ring.stage), a, full, item.m0, block * kProductDepth, 0);
      load_b(shared.b(ring.stage), full, item, block * kProductDepth);
      ring.advance();
    }
  });
}

// Multiplies a warpgroup's 64 rows of each tile.
template <Major kMajor>
struct Multiplier {
  using Tiles = ProductTiles<kMajor>;
  using A = typename Tiles::A;
  using B = typename Tiles::B;
  static constexpr int kRegisters = kProductColumns / 2;
  const Tiles& shared;
  ProductBarriers& barriers;
  int warpgroup, thread;  // of those that multiply; of the warpgroup
  RingPlace<kProductStages> ring{};

  __device__ __forceinline__ void run(const ProductSchedule& schedule) {
    RingPlace<1> output;
    schedule.for_each([&](const ProductSchedule::Item&) {
      float d[kRegisters];
      multiply(d, schedule.blocks);
      barriers.output.wait_empty(output);
      leave(d);
      output.advance();
    });
  }

 private:
  __device__ __forceinline__ void multiply(float (&d)[kRegisters], int blocks) {
    int before = 0;  // the stage whose products may still run
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      barriers.ring.wait_full(ring);
      const uint64_t a = A::k_major(shared.a(ring.stage), warpgroup * kWarpgroupRows);
      const uint8_t* const tile = shared.b(ring.stage);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kProductDepth / kWgmmaDepth; ++i) {
        uint64_t b = 0;
        if constexpr (kMajor == Major::kK) {
          b = B::k_major(tile) + B::k_step(i);
        } else {
          b = B::mn_major(tile) + B::mn_step(i);
        }
        wgmma<Major::kK, kMajor>(d, a + A::k_step(i), b, block + i > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (block > 0) release(before);
      before = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    settle(d);
    release(before);
  }
  // Releases the stage in both blocks, whose producers each write half of its B.
  __device__ __forceinline__ void release(int stage) const {
    const auto lane = static_cast<uint32_t>(thread % kWarpSize);
    if (lane < kProductCluster) barriers.ring.empty[stage].arrive_in_cluster(lane);
  }
  // Stores D: four 8 x 8 matrices a store, 16 rows by 16 columns.
  __device__ __forceinline__ void leave(const float (&d)[kRegisters]) const {
    const int lane = thread % kWarpSize, warp = thread / kWarpSize;
    const int row = warpgroup * kWarpgroupRows + warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kProductColumns / 16; ++j) {
      store_matrices(
          shared.output() + ProductOutput::offset(row, 16 * j + lane / 16 * 8),
          {pack_bf16(d[8 * j], d[8 * j + 1]), pack_bf16(d[8 * j + 2], d[8 * j + 3]),
           pack_bf16(d[8 * j + 4], d[8 * j + 5]), pack_bf16(d[8 * j + 6], d[8 * j + 7])});
    }
    __syncwarp();
    if (lane == 0) barriers.output.full[0][0].arrive();
  }
};

}  // namespace quern::kernels::cuda
