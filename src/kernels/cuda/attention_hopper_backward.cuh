// What Hopper's two backward attention kernels share: their tiles, the order of their blocks, and
// the products. For the steps between those see attention_hopper_gradients.cuh.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "kernels/attention.h"
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/attention_hopper_gradients.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace quern::kernels::cuda {

// A block has one warpgroup that loads and some, the consumers, that compute, each for 64 rows of
// its own: queries in the dQ kernel, which walks over tiles of `dq_keys` keys, and keys in the dK,
// dV kernel, which walks over tiles of `dkdv_queries` queries. Registers bound the tiles: a
// consumer thread holds D / 2 floats of dQ and 5/4 dq_keys words of S, dP and dS, or D floats of dK
// and dV and 3/2 dkdv_queries words of S, dP, P and dS, out of 240 (160 with three consumers).
// Others that fit: three consumers of 64 to 96 keys (D 64) and of 64 or 80 (D 80) for dQ, two of 64
// to 128 keys for any D; 64 or 80 queries for dK and dV (D 64 and 80). More of either spills.
struct HopperBackwardTile {
  int head_dim = 0;
  int dq_consumers = 0, dq_keys = 0;
  int dkdv_consumers = 0, dkdv_queries = 0;
};
inline constexpr HopperBackwardTile kHopperBackwardTiles[] = {
    {64, 2, 128, 2, 96}, {80, 2, 128, 2, 96}, {128, 2, 128, 2, 64}};
inline constexpr int kHopperBackwardTileCount = static_cast<int>(std::size(kHopperBackwardTiles));

// Tiles in flight. dQ kernel: K of the next tile is read before this one is finished, V is not.
// dK, dV kernel: Q together with dO.
inline constexpr int kKeyStages = 3;
inline constexpr int kValueStages = 2;
inline constexpr int kDkdvStages = 4;

// Heads (of `heads`) that a group of blocks works on together, so that what they read over and over
// stays in L2.
inline int heads_in_l2(int64_t bytes_per_head, int64_t heads) {
  constexpr int64_t kBytes = 24 << 20;
  return static_cast<int>(std::clamp<int64_t>(kBytes / std::max<int64_t>(bytes_per_head, 1), 1,
                                              std::max<int64_t>(heads, 1)));
}

// Index of the tile for head_dim D; -1 when there is none.
constexpr int hopper_backward_tile(int64_t D) {
  for (int i = 0; i < kHopperBackwardTileCount; ++i) {
    if (kHopperBackwardTiles[i].head_dim == D) return i;
  }
  return -1;
}

// Block -> tile of which head: groups of heads one after the other; within a group the tiles in
// order, each for all heads, so that the longest come first.
struct BlockPlace {
  int tile, head;

  __device__ BlockPlace(int block, int tiles, int heads, int together) {
    const int group = block / (tiles * together);
    const int first = group * together;
    const int in_group = heads - first < together ? heads - first : together;
    const int rest = block - first * tiles;
    tile = rest / in_group;
    head = first + rest % in_group;
  }
};

// d = A B^T over kDepth columns, both operands with rows of D or A in shared memory.
template <class ATile, class BTile, int kDepth, int kRegisters>
__device__ __forceinline__ void multiply_rows(float (&d)[kRegisters], uint64_t a, uint64_t b) {
#pragma unroll
  for (int i = 0; i < kDepth / kWgmmaDepth; ++i) {
    wgmma<Major::kK, Major::kK>(d, a + ATile::k_step(i), b + BTile::k_step(i), i > 0);
  }
}

// d += A B: A (P or dS) from registers, B the rows of a tile.
template <class BTile, int kRegisters, int kSteps>
__device__ __forceinline__ void add_product(float (&d)[kRegisters], const uint32_t (&a)[kSteps][4],
                                            uint64_t b) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) wgmma<Major::kMN>(d, a[i], b + BTile::mn_step(i), true);
}

// A warp has finished reading a stage of the ring.
__device__ __forceinline__ void release(MBarrier& empty) {
  if (threadIdx.x % kWarpSize == 0) empty.arrive();
}

// attention_hopper_dq.cu: dq, and delta (B, H, Tq) = sum over D of d_o o for the other kernel.
bool hopper_dq_runs(int64_t D);
void hopper_attention_dq(bfloat16* dq, float* delta, const bfloat16* d_o, const bfloat16* o,
                         const float* lse, const bfloat16* q, const bfloat16* k, const bfloat16* v,
                         const AttentionShape& s, Stream stream);
// attention_hopper_dkdv.cu
bool hopper_dkdv_runs(int64_t D);
void hopper_attention_dkdv(bfloat16* dk, bfloat16* dv, const bfloat16* d_o, const float* lse,
                           const float* delta, const bfloat16* q, const bfloat16* k,
                           const bfloat16* v, const AttentionShape& s, Stream stream);

}  // namespace quern::kernels::cuda
