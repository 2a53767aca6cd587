// dK and dV of a tile of keys in Hopper's backward attention, when several blocks each have some of
// the query heads that share it. Every block writes its part to scratch memory. The last one to
// arrive adds all parts in the order of the heads, so that the bits do not depend on the arrival
// order. Each of a block's warpgroups does so for its own 64 keys. All 128 threads make each call.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/wgmma.cuh"

namespace quern::kernels::cuda {

// Stores a part, in the order of store_fours.
template <int kRegisters>
__device__ __forceinline__ void store_part(float4* part, const float (&d)[kRegisters]) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
  store_fours(d, [&](int i, const float4& four) { __stcg(part + i + thread, four); });
}

// d = the sum of `parts` parts, `stride` float4 apart.
template <int kRegisters>
__device__ __forceinline__ void sum_parts(float (&d)[kRegisters], const float4* first, int parts,
                                          int stride) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
#pragma unroll
  for (float& sum : d) sum = 0.0f;
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
#pragma unroll
    for (int j = 0; j < kRegisters / 4; ++j) {
      const float4 x = __ldcg(first + part * stride + j * kWarpgroupSize + thread);
      d[4 * j] += x.x, d[4 * j + 1] += x.y, d[4 * j + 2] += x.z, d[4 * j + 3] += x.w;
    }
  }
}

// Called after store_part: whether all `parts` are in scratch memory, visible to this warpgroup.
// `counter` is in global memory, `arrived` in shared; `sync` is a barrier of this warpgroup.
template <class Sync>
__device__ __forceinline__ bool is_last_part(uint32_t* counter, int parts, uint32_t& arrived,
                                             Sync sync) {
  __threadfence();
  sync();
  if (threadIdx.x % kWarpgroupSize == 0) arrived = atomicAdd(counter, 1u);
  sync();
  __threadfence();
  return arrived + 1 == static_cast<uint32_t>(parts);
}

}  // namespace quern::kernels::cuda
