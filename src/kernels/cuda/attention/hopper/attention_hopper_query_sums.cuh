// The sums of dQ in Hopper's backward attention. Every key tile contributes to the dQ of the query
// tiles that see it. The contributions to one query tile are added in a fixed order
// (BackwardPlan::before), counted by a turn counter in global memory, so that the sum has the same
// bits in every run. Without `deterministic`, all but the first add in any order. A separate kernel
// turns the sums into dQ. A block that waited for its turn to finish a tile delayed all blocks
// behind it, which cost a fifth of the time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/cuda/attention/hopper/attention_hopper_gradients.cuh"
#include "kernels/cuda/primitives/tma.cuh"
#include "kernels/cuda/primitives/wgmma.cuh"

namespace quern::kernels::cuda {

// Returns once at least `least` contributions, or parts of them, have been added and are visible.
__device__ __forceinline__ void wait_turn(const uint32_t* turn, int least) {
  uint32_t added = 0;
  while (true) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(added) : "l"(turn) : "memory");
    if (added >= static_cast<uint32_t>(least)) break;
    __nanosleep(20);
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");  // before this thread's bulk copies
}

// Counts a contribution as added. Its release also covers the sums of other threads whose arrival
// at a barrier this thread has waited for.
__device__ __forceinline__ void pass_turn(uint32_t* turn) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(turn) : "memory");
}

// Adds a buffer in shared memory to a sum, or stores it as the first. Calls release() once it has
// been read, and returns once the sum is complete.
template <class Release>
__device__ __forceinline__ void add_buffer(float* sum, const float4* buffer, uint32_t bytes,
                                           bool add, Release release) {
  if (add) {
    add_bulk_async(sum, buffer, bytes);
  } else {
    store_bulk_async(sum, buffer, bytes);
  }
  commit_stores();
  wait_stores_read<0>();
  release();
  wait_stores<0>();
}

// The same for a fragment in the order of store_fours, from all threads of a warpgroup, without
// waiting.
template <int kRegisters>
__device__ __forceinline__ void add_fragment(float4* sum, const float (&d)[kRegisters], bool add) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
  if (add) {
    store_fours(d, [&](int i, const float4& four) {
      asm volatile(
          "red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sum + i + thread),
          "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
          : "memory");
    });
  } else {
    store_fours(d, [&](int i, const float4& four) { __stcg(sum + i + thread, four); });
  }
}

// Inverse RoPE of kGroups groups of 8 columns and their partners D / 2 further on; a thread has its
// columns of two rows. `token` is the first row's, `tokens` the number of all.
template <int kD, int kGroups>
__device__ __forceinline__ void rotate_back(float* low, float* high,
                                            const RotaryTable<float>& rotary, int token, int tokens,
                                            int first_column) {
  if (rotary.cos == nullptr) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = token + 8 * r;
    if (row >= tokens) continue;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int64_t place = int64_t{row} * (kD / 2) + first_column + 8 * j;
      const float2 cos = __ldg(reinterpret_cast<const float2*>(rotary.cos + place));
      const float2 sin = __ldg(reinterpret_cast<const float2*>(rotary.sin + place));
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float c = e == 0 ? cos.x : cos.y, s = e == 0 ? sin.x : sin.y;
        float &x1 = low[4 * j + 2 * r + e], &x2 = high[4 * j + 2 * r + e];
        const float y1 = x1, y2 = x2;
        x1 = fmaf(y1, c, y2 * s);
        x2 = fmaf(y2, c, -y1 * s);
      }
    }
  }
}

// Destination of a tile's dQ: dq points at row `token` of a head of `tokens` by `columns`.
struct QueryRows {
  bfloat16* dq;
  int64_t stride;
  int token, tokens, columns;
  float scale;
};

// dQ = scale sums, rotated back. `sums` is in the order of store_fours.
template <int kD>
__device__ __forceinline__ void finish_queries(const QueryRows& rows, const float4* sums,
                                               const RotaryTable<float>& rotary,
                                               const FragmentPlace& place) {
  constexpr int kHalf = kD / 16;  // groups of 8 columns
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
  const auto load = [&](float* sum, int group) {
    const float4 x = __ldcs(sums + group * kWarpgroupSize + thread);
    sum[0] = x.x, sum[1] = x.y, sum[2] = x.z, sum[3] = x.w;
  };
  const auto finish = [&](int first, auto count) {
    constexpr int kGroups = decltype(count)::value;
    float low[4 * kGroups], high[4 * kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      load(low + 4 * j, first + j);
      load(high + 4 * j, kHalf + first + j);
    }
    rotate_back<kD, kGroups>(low, high, rotary, rows.token + place.row, rows.tokens,
                             8 * first + place.column);
    const int left = rows.tokens - rows.token;
    const auto store = [&](int column, const auto& d) {
      store_fragment(rows.dq + column, rows.stride, left, rows.columns - column, d, rows.scale,
                     place);
    };
    store(8 * first, low);
    store(kD / 2 + 8 * first, high);
  };
  constexpr int kFours = kHalf / 4 * 4;  // 32 columns make 16-byte stores
#pragma unroll 1                         // more at a time than the registers hold
  for (int first = 0; first < kFours; first += 4) {
    finish(first, std::integral_constant<int, 4>{});
  }
#pragma unroll
  for (int first = kFours; first < kHalf; ++first) finish(first, std::integral_constant<int, 1>{});
}

}  // namespace quern::kernels::cuda
