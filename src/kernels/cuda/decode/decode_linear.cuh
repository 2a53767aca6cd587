// The parts of the decoding product (decode_linear.cu and decode_token.cu): the division of the
// work, accesses to a row of w, a warp's products of two rows of w with a few rows of x, and SwiGLU
// of the products.
//
// A warp reads 512 consecutive bytes of each of its two rows of w at a time; lane l reads 16-byte
// chunk l. Pieces of 64 bytes of 8 rows, as for an mma instruction, take twice the time.
#pragma once

#include "kernels/cuda/decode/decode_rounding.cuh"
#include "kernels/cuda/primitives/mma.cuh"
#include "kernels/cuda/primitives/vec.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/decode_linear.h"

namespace quern::kernels::cuda {

inline constexpr int kMultiprocessors = 132;  // assumed on every GPU when dividing work
inline constexpr int kLinearWarps = 8, kLinearThreads = kLinearWarps * kWarpSize;
inline constexpr int kPair = 2;  // rows of w of a warp: neighbours, or SwiGLU's gate and up
inline constexpr int kStepChunks = kWarpSize, kStepBytes = kStepChunks * 16;
inline constexpr int kStepsAhead = 4;  // steps of both rows that are in flight

template <class T>
inline constexpr int kChunkElements = 16 / static_cast<int>(sizeof(T));

// `parts` warps share a pair of rows. A block has `teams` such groups; a team's next pair is blocks
// * teams pairs further on.
struct LinearPlan {
  int pairs = 0, parts = 1, teams = 1, blocks = 0;
  int steps_before = kStepsAhead;  // fetched before the previous kernel has ended
};

// How many warps share a pair of rows of w: the number with the fewest sequential steps of a
// multiprocessor's warps, if all kMultiprocessors have equally many pairs. Beginning and ending a
// pair counts as three steps. A function of the weight's shape alone, so that sums are split alike
// for every number of rows and in both kernels.
inline int linear_parts(int64_t in_bytes, int64_t out) {
  constexpr int kAround = 3;
  const int64_t pairs = ceil_div(ceil_div(out, kPair), kMultiprocessors);
  const int64_t steps = ceil_div(in_bytes, kStepBytes);
  int best = 1;
  int64_t least = INT64_MAX;
  for (int parts = 1; parts <= kLinearWarps && parts <= steps; parts *= 2) {
    const int64_t turns = ceil_div(pairs * parts, kLinearWarps);
    const int64_t cost = turns * (ceil_div(steps, parts) + kAround);
    if (cost >= least) continue;
    least = cost;
    best = parts;
  }
  return best;
}

// `resident` blocks fit on each multiprocessor, so that no block waits for another to end.
inline LinearPlan plan_linear(int64_t in_bytes, int64_t out, int resident) {
  LinearPlan plan;
  plan.pairs = static_cast<int>(ceil_div(out, kPair));
  plan.parts = linear_parts(in_bytes, out);
  plan.teams = kLinearWarps / plan.parts;
  const int64_t blocks = ceil_div(int64_t{plan.pairs} * plan.parts, kLinearWarps);
  const int64_t turns = ceil_div(blocks, resident * kMultiprocessors);
  plan.blocks = static_cast<int>(ceil_div(blocks, turns));
  // A large weight takes all the bandwidth at once, and x would have to wait behind it.
  constexpr int64_t kLarge = int64_t{12} << 20;
  if (in_bytes * out > kLarge) plan.steps_before = 1;
  return plan;
}

// 16 bytes of w that no other block will read, so they bypass L1; zeros unless `present`.
__device__ __forceinline__ uint4 load_weights(const void* p, bool present) {
  uint4 v = make_uint4(0, 0, 0, 0);
  asm volatile(
      "{ .reg .pred p;\n"
      "  setp.ne.b32 p, %5, 0;\n"
      "  @p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(__cvta_generic_to_global(p)), "r"(static_cast<int>(present)));
  return v;
}

// Chunk c of a row of n elements, loaded element by element; zeros past the row's end.
template <class T>
__device__ __forceinline__ uint4 gather_chunk(const T* row, int c, int n) {
  constexpr int kElements = kChunkElements<T>;
  uint32_t words[4] = {};
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const int i = c * kElements + e;
    if (i >= n) continue;
    if constexpr (sizeof(T) == 4) {
      words[e] = __float_as_uint(__ldcg(row + i));
    } else {
      const uint16_t bits = __ldcg(reinterpret_cast<const unsigned short*>(row + i));
      words[e / 2] |= static_cast<uint32_t>(bits) << (e % 2 * 16);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// One warp's products of kRows rows of x with a pair of rows of w. Missing rows of x are replaced
// by the last one.
template <class T, int kRows>
struct RowProducts;

// On tensor cores, where a chunk is the operands of two mma instructions. Column g of B is what
// lanes 4 g to 4 g + 3 have of the row of w, an eighth of the step. Row g of A is the same eighth
// of x, so only the diagonal of the 8 x 8 products is used. Rows g + 8 are a second row of x.
template <int kRows>
struct RowProducts<bfloat16, kRows> {
  static_assert(kRows % 2 == 0);
  float c[kPair][kRows / 2][4] = {};

  // x: this lane's chunk of row 0, rows `stride` bytes apart.
  __device__ __forceinline__ void add(const uint4 (&w)[kPair], const char* x, int stride,
                                      int rows) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const uint4 low = *reinterpret_cast<const uint4*>(x + min(2 * i, rows - 1) * stride);
      const uint4 high = *reinterpret_cast<const uint4*>(x + min(2 * i + 1, rows - 1) * stride);
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int j = 0; j < kPair; ++j) {
        mma_bf16(c[j][i], first, w[j].x, w[j].y);
        mma_bf16(c[j][i], second, w[j].z, w[j].w);
      }
    }
  }
  // Writes sums (rows, kPair); all lanes take part. c[0] and c[1] of lane 4 g + t are columns 2 t
  // and 2 t + 1 of row g. So the diagonal is in lanes 0, 4, 9, 13, 18, 22, 27 and 31: three
  // exchanges bring it to lane 0.
  __device__ __forceinline__ void store(float* sums, int rows) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize, g = lane / 4;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kPair; ++j) {
        if (i >= rows) continue;
        const float even = c[j][i / 2][i % 2 * 2], odd = c[j][i / 2][i % 2 * 2 + 1];
        float sum = g % 2 == 0 ? even : odd;
#pragma unroll
        for (const int apart : {4, 9, 18}) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        if (lane == 0) sums[i * kPair + j] = sum;
      }
    }
  }
};

template <int kRows>
struct RowProducts<float, kRows> {
  float c[kPair][kRows] = {};

  __device__ __forceinline__ void add(const uint4 (&w)[kPair], const char* x, int stride,
                                      int rows) {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      const float4 b = *reinterpret_cast<const float4*>(x + min(m, rows - 1) * stride);
#pragma unroll
      for (int j = 0; j < kPair; ++j) {
        float a[4];
        unpack<float>(a, w[j]);
        c[j][m] = fmaf(a[0], b.x, c[j][m]);
        c[j][m] = fmaf(a[1], b.y, c[j][m]);
        c[j][m] = fmaf(a[2], b.z, c[j][m]);
        c[j][m] = fmaf(a[3], b.w, c[j][m]);
      }
    }
  }
  __device__ __forceinline__ void store(float* sums, int rows) const {
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int j = 0; j < kPair; ++j) {
        const float sum = warp_sum(c[j][m]);
        if (threadIdx.x % kWarpSize == 0 && m < rows) sums[m * kPair + j] = sum;
      }
    }
  }
};

// SwiGLU of the products of gate and up, each rounded to T.
template <class T>
__device__ __forceinline__ float decode_swiglu(float gate, float up) {
  const float g = rounded<T>(gate), one_and_power = 1.0f + exp_for<T>(-g);
  // The fast quotient is 0 for divisors above 2^126, as it should be, and 2^-22 off elsewhere.
  const float silu = sizeof(T) == 4 ? g / one_and_power : __fdividef(g, one_and_power);
  return silu * rounded<T>(up);
}

}  // namespace quern::kernels::cuda
