// What the tensor-core attention of FP32 tensors is built from. Few nouns: tiles of FP32 in shared
// memory (FloatRows), an operand of mma (one TF32 part, or two) and a sum of its products. Few
// verbs: load_rows, multiply_transposed, multiply_add, store_rows.
//
// An FP32 number has 24 bits and an operand of the tensor cores 11. With kSplit each operand is the
// sum of a high part and a low one, and a product is high high + high low + low high (Ootomo and
// Yokota, 2022): what is left out is 2^-22 of it. The tensor cores cut off what a sum of theirs
// does not hold, always towards zero, so a long sum drifts. With kSplit theirs span one tile, the
// small products have a sum of their own, and the tiles are added up by ordinary, rounding adds.
//
// Registers of mma.m16n8k8, with g = lane / 4 and t = lane % 4:
//   A (16 x 8): a[0] at (g, t), a[1] at (g + 8, t), a[2] at (g, t + 4), a[3] at (g + 8, t + 4)
//   B (8 x 8):  b0 at row t of column g, b1 four rows below
//   C (16 x 8): c[0], c[1] at (g, 2t) and (g, 2t + 1), c[2], c[3] eight rows below
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_mma_place.cuh"
#include "kernels/cuda/attention_tf32.h"
#include "kernels/cuda/mma.cuh"

namespace quern::kernels::cuda {

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

  // x rounds to the nearest TF32. A NaN stays one: cvt keeps it; the split's addition may carry it
  // into the sign, but then the difference is NaN.
  __device__ __forceinline__ void set(int i, float x) {
    if constexpr (kSplit) {
      high[i] = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
      low[i] = __float_as_uint(x - __uint_as_float(high[i]));  // exact; mma cuts its last bit
    } else {
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high[i]) : "f"(x));
    }
  }
};

// A sum of products of operands: a 16 x 8 tile.
template <bool kSplit>
struct ProductSum {
  float high[4] = {};
  float low[kSplit ? 4 : 1] = {};

  __device__ __forceinline__ float value(int i) const {
    if constexpr (kSplit) {
      return high[i] + low[i];
    } else {
      return high[i];
    }
  }
};

// sums[m][first + n] += a[m] b[n]; independent products come one after another.
template <bool kSplit, int kM, int kAll, int kN>
__device__ __forceinline__ void multiply(ProductSum<kSplit> (&sums)[kM][kAll], int first,
                                         const Operand<kSplit, 4> (&a)[kM],
                                         const Operand<kSplit, 2> (&b)[kN]) {
  if constexpr (kSplit) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_tf32(sums[m][first + n].low, a[m].high, b[n].low[0], b[n].low[1]);
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
        mma_tf32(sums[m][first + n].low, a[m].low, b[n].high[0], b[n].high[1]);
      }
    }
  }
}

// Rows of kD floats, kD a multiple of 16, and 16 bytes of padding each. A row is then an odd number
// of 16-byte chunks long, so both the 8 rows of a matrix that ldmatrix reads and what multiply_add
// reads lie in different banks.
template <int kD>
struct FloatRows {
  static_assert(kD % 16 == 0);
  static constexpr int kBytes = kD * 4 + kTf32PadBytes;  // of a row
  static constexpr int kPadding = kD * 4;                // offset of the padding in a row

  // This lane's address for ldmatrix of 16 x 8 floats as A; a "row" of its 8 x 8 matrices of 16
  // bits is 4 floats, and a pair of 16 bits is one.
  static __device__ __forceinline__ uint32_t row_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 16 * kBytes + lane / 16 * 16;
  }
  // Of 16 rows as columns n of two B tiles, k along the row.
  static __device__ __forceinline__ uint32_t column_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return (lane / 16 * 8 + lane % 8) * kBytes + lane / 8 % 2 * 16;
  }
  // Of rows 2t and below it as k of B tiles, kWide features a lane from kWide g on.
  template <int kWide>
  static __device__ __forceinline__ uint32_t feature_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 4 * 2 * kBytes + lane / 4 * (4 * kWide);
  }
};
static_assert(FloatRows<64>::kBytes == tf32_row_bytes({64, 0, 0}));

// Starts to copy x[row, :], x pointing at the tile's first row, to kRows rows at `tile`: zeros
// beyond `rows` rows and D features. A chunk of 16 bytes is inside or outside as a whole, since D
// is a multiple of 8. Without `vectors` rows have any alignment, and floats are copied one by one.
template <int kRows, int kD>
__device__ __forceinline__ void load_rows(uint32_t tile, const float* x, int64_t stride, int rows,
                                          int D, bool vectors) {
  constexpr int kChunks = kD / 4;
  const int thread = reread_thread();
  if (vectors) {
    constexpr int kTotal = kRows * kChunks;
    static_assert(kTotal % kAttentionThreads == 0);
#pragma unroll
    for (int first = 0; first < kTotal; first += kAttentionThreads) {
      const int row = (first + thread) / kChunks;
      const int chunk = (first + thread) % kChunks;
      copy_async<16>(tile + row * FloatRows<kD>::kBytes + chunk * 16, x + row * stride + chunk * 4,
                     row < rows && chunk * 4 < D);
    }
    return;
  }
#pragma unroll 1
  for (int e = thread; e < kRows * kD; e += kAttentionThreads) {
    const int row = e / kD;
    const int d = e % kD;
    copy_async<4>(tile + row * FloatRows<kD>::kBytes + d * 4, x + row * stride + d,
                  row < rows && d < D);
  }
}

// scores = rows columns^T. `rows`: address of the warp's rows, plus row_lane(); `columns`: of a
// tile of 8 kN rows, plus column_lane().
template <bool kSplit, int kD, int kM, int kN>
__device__ __forceinline__ void multiply_transposed(float (&scores)[kM][kN][4], uint32_t rows,
                                                    uint32_t columns) {
  ProductSum<kSplit> sums[kM][kN];
#pragma unroll
  for (int k = 0; k < kD / 8; ++k) {
    Operand<kSplit, 4> a[kM];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      uint32_t r[4];
      ldmatrix(r, rows + m * 16 * FloatRows<kD>::kBytes + k * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m].set(i, __uint_as_float(r[i]));
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t r[4];
      ldmatrix(r, columns + n * 8 * FloatRows<kD>::kBytes + k * 32);
      Operand<kSplit, 2> b[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i / 2].set(i % 2, __uint_as_float(r[i]));
      multiply(sums, n, a, b);
    }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = sums[m][n].value(i);
    }
  }
}

// The features that a lane holds of a product with kD of them: of each kWide 8 of them it loads
// kWide neighbours, one for each of kWide tiles of B. So feature 8 kWide f + 2 kWide t + kWide i + j
// lies in tile kWide f + j, element i of the pair.
template <int kD>
inline constexpr int kFeatureWidth = kD % 32 == 0 ? 4 : 2;

template <bool kSplit, int kWide>
__device__ __forceinline__ void load_features(Operand<kSplit, 2> (&b)[kWide], uint32_t address,
                                              int row_bytes) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kWide == 4) {
      const uint4 x = load_shared_16(address + i * row_bytes);
      b[0].set(i, __uint_as_float(x.x));
      b[1].set(i, __uint_as_float(x.y));
      b[2].set(i, __uint_as_float(x.z));
      b[3].set(i, __uint_as_float(x.w));
    } else {
      const float2 x = load_shared_float2(address + i * row_bytes);
      b[0].set(i, x.x);
      b[1].set(i, x.y);
    }
  }
}

// out += p columns. The accumulators of a 16 x 8 tile of p are a fragment of A when its k is taken
// in the order 0, 2, 4, 6, 1, 3, 5, 7, and so are the rows of `columns` (address of a tile of 8 kN
// rows) then.
template <bool kSplit, int kD, int kM, int kN>
__device__ __forceinline__ void multiply_add(float (&out)[kM][kD / 8][4],
                                             const float (&p)[kM][kN][4], uint32_t columns) {
  using Rows = FloatRows<kD>;
  constexpr int kWide = kFeatureWidth<kD>;
  Operand<kSplit, 4> a[kN][kM];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      a[n][m].set(0, p[m][n][0]);
      a[n][m].set(1, p[m][n][2]);
      a[n][m].set(2, p[m][n][1]);
      a[n][m].set(3, p[m][n][3]);
    }
  }
  const uint32_t lane = columns + Rows::template feature_lane<kWide>();
#pragma unroll
  for (int f = 0; f < kD / 8; f += kWide) {
    ProductSum<kSplit> sums[kM][kWide];
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      Operand<kSplit, 2> b[kWide];
      load_features(b, lane + n * 8 * Rows::kBytes + f * 32, Rows::kBytes);
      multiply(sums, 0, a[n], b);
    }
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[m][f + j][i] += sums[m][j].value(i);
      }
    }
  }
}

// x[row, :] = factor values, for the warp's rows, of which `rows` exist, x pointing at the first;
// values from multiply_add.
template <int kD, int kM>
__device__ __forceinline__ void store_rows(float* x, int64_t stride, int rows, int D,
                                           const float (&values)[kM][kD / 8][4],
                                           const float (&factor)[kM][2], bool vectors) {
  constexpr int kWide = kFeatureWidth<kD>;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int m = r / 2, half = r % 2;
    const int row = 8 * r + lane_row();
    if (row >= rows) continue;
#pragma unroll
    for (int f = 0; f < kD / 8; f += kWide) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = 8 * f + lane_column() * kWide + i * kWide;
        if (d >= D) continue;  // D is a multiple of 8, and d of kWide
        float part[kWide];
#pragma unroll
        for (int j = 0; j < kWide; ++j) part[j] = factor[m][half] * values[m][f + j][2 * half + i];
        float* const target = x + row * stride + d;
        if (vectors) {
          store_vec(target, part);
        } else {
#pragma unroll
          for (int j = 0; j < kWide; ++j) target[j] = part[j];
        }
      }
    }
  }
}

// P and dS of one element, from a score and dP, in place.
__device__ __forceinline__ void recompute(float& s, float& dp, float scale2, float lse2,
                                          float delta) {
  s = exp2_approximate(fmaf(s, scale2, -lse2));
  dp = s * (dp - delta);
}

// logsumexp in units of log2. A query that sees no key has -inf, and its scores are all hidden: any
// finite number does.
__device__ __forceinline__ float log2_sum(float lse) {
  return lse == -INFINITY ? 0.0f : lse * kLog2E;
}

}  // namespace quern::kernels::cuda
