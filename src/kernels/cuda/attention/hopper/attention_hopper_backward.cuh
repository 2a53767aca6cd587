// Shared by the parts of Hopper's backward attention: the scratch memory and the products. The
// order of the work is in attention_hopper_backward_plan.h, the steps between products in
// attention_hopper_gradients.cuh. The sums of dQ are in attention_hopper_query_sums.cuh, those of
// dK and dV in attention_hopper_key_sums.cuh.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/attention/hopper/attention_hopper.cuh"
#include "kernels/cuda/attention/hopper/attention_hopper_backward_plan.h"
#include "kernels/cuda/attention/hopper/attention_hopper_gradients.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace quern::kernels::cuda {

// The backward's scratch memory, in this order.
struct BackwardScratch {
  float* dq;        // (B, H, query tiles, 64 D): sums of dQ without the scale, in fragments' order
  float* dkv;       // (B, Hk, key tiles, 2, parts, sums, 64 D) of a score warpgroup's dV and dK, or
                    // of the one that it has, where there are parts
  float* delta;     // (B, H, Tq): the sum over D of dO O
  uint32_t* turns;  // (B, H, query tiles): parts of key tiles added to dq so far
  uint32_t* key_parts;  // (B, Hk, key tiles, 2): stored parts of dK and dV
  uint32_t* next;       // the next item of the plan

  BackwardScratch(const BackwardExtents& extents, void* memory)
      : dq(static_cast<float*>(memory)),
        dkv(dq + extents.dq),
        delta(dkv + extents.dkv),
        turns(reinterpret_cast<uint32_t*>(delta + extents.delta)),
        key_parts(turns + extents.turns),
        next(key_parts + extents.key_parts) {}
};

// d = A B^T over kDepth columns; both operands are K-major in shared memory.
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

// d += A B over kDepth: A K-major in shared memory, B the rows of a tile.
template <class ATile, class BTile, int kDepth, int kRegisters>
__device__ __forceinline__ void add_product(float (&d)[kRegisters], uint64_t a, uint64_t b) {
#pragma unroll
  for (int i = 0; i < kDepth / kWgmmaDepth; ++i) {
    wgmma<Major::kK, Major::kMN>(d, a + ATile::k_step(i), b + BTile::mn_step(i), true);
  }
}

// d = A^T B over the kRows rows of both tiles.
template <class ATile, class BTile, int kRows, int kRegisters>
__device__ __forceinline__ void multiply_columns(float (&d)[kRegisters], uint64_t a, uint64_t b) {
#pragma unroll
  for (int i = 0; i < kRows / kWgmmaDepth; ++i) {
    wgmma<Major::kMN, Major::kMN>(d, a + ATile::mn_step(i), b + BTile::mn_step(i), i > 0);
  }
}

}  // namespace quern::kernels::cuda
