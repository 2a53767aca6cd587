// Operands of the tensor cores made of FP32 numbers, one TF32 part or two, and product sums.
//
// An FP32 number has 24 bits and an operand of the tensor cores 11. With kSplit each operand is the
// sum of a high part and a low one. A product is then high high + high low + low high (Ootomo and
// Yokota, 2022); the omitted part is 2^-22 of it. Tensor cores truncate their sums towards zero, so
// a long sum drifts. With kSplit the small products have a sum of their own, and the sum of the
// others spans kFlushSteps steps. Ordinary, rounding adds do the rest.
//
// Registers of mma.m16n8k8, with g = lane / 4 and t = lane % 4:
//   A (16 x 8): a[0] at (g, t), a[1] at (g + 8, t), a[2] at (g, t + 4), a[3] at (g + 8, t + 4)
//   B (8 x 8):  b0 at row t of column g, b1 four rows below
//   C (16 x 8): c[0], c[1] at (g, 2t) and (g, 2t + 1), c[2], c[3] eight rows below
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/mma/attention_mma_place.cuh"

namespace quern::kernels::cuda {

inline constexpr int kFlushSteps = 4;
inline constexpr float kTf32Lift = 1.0f + 0.72f / 2048;

// c += a b
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// kCount registers of an operand.
template <bool kSplit, int kCount>
struct Operand {
  uint32_t high[kCount];
  uint32_t low[kSplit ? kCount : 1];

  // One part: mma ignores the last 13 bits, which shrinks numbers by 0.36 units in TF32's last
  // place on average. The factor kTf32Lift prevents that, and a number of 11 bits stays itself. It
  // takes one instruction, cvt.rna two. Two parts: the high one is rounded. With `cut` it is
  // truncated, which saves an instruction and leaves the low one two bits too many instead of one.
  // Only one of two operands is cut, so that the omitted product low low has either sign. A NaN
  // remains one, at least in the low part.
  __device__ __forceinline__ void set(int i, float x, bool cut = false) {
    if constexpr (kSplit) {
      high[i] = __float_as_uint(x) + (cut ? 0u : 0x1000u);
      low[i] = __float_as_uint(x - __uint_as_float(high[i] & 0xffffe000u));
    } else {
      high[i] = __float_as_uint(x * kTf32Lift);
    }
  }
};

// A split operand is cut where heads are so wide that products bound the kernels.
template <int kD>
inline constexpr bool kCutOperand = kD >= 64;

// A sum of products of operands: a 16 x 8 tile. With kLows = 2 the two small products have a sum
// each, where too few independent tiles hide the latency of mma.
template <bool kSplit, int kLows = 1>
struct ProductSum {
  float high[4] = {};
  float low[kSplit ? kLows : 1][4] = {};

  __device__ __forceinline__ float value(int i) const {
    if constexpr (kSplit) {
      return high[i] + (kLows == 2 ? low[0][i] + low[kLows - 1][i] : low[0][i]);
    } else {
      return high[i];
    }
  }
};

// Moves the high sums to `totals`, by rounding adds, so that they stay short.
template <int kLows, int kM, int kN>
__device__ __forceinline__ void flush(ProductSum<true, kLows> (&sums)[kM][kN],
                                      float (&totals)[kM][kN][4]) {
  for_each_element<kM, kN>([&](int m, int n, int i) {
    totals[m][n][i] += sums[m][n].high[i];
    sums[m][n].high[i] = 0.0f;
  });
}

// sums[m][first + n] += a[m] b[n]; independent products come one after another.
template <bool kSplit, int kLows, int kM, int kAll, int kN>
__device__ __forceinline__ void multiply(ProductSum<kSplit, kLows> (&sums)[kM][kAll], int first,
                                         const Operand<kSplit, 4> (&a)[kM],
                                         const Operand<kSplit, 2> (&b)[kN]) {
  if constexpr (kSplit) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_tf32(sums[m][first + n].low[0], a[m].high, b[n].low[0], b[n].low[1]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      mma_tf32(sums[m][first + n].high, a[m].high, b[n].high[0], b[n].high[1]);
    }
  }
  if constexpr (kSplit) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_tf32(sums[m][first + n].low[kLows - 1], a[m].low, b[n].high[0], b[n].high[1]);
      }
    }
  }
}

}  // namespace quern::kernels::cuda
