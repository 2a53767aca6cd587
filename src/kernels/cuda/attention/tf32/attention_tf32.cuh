// Building blocks of the tensor-core attention of FP32 tensors: tiles of FP32 in shared memory
// (FloatRows), which become operands of mma as they are read. Verbs: multiply_transposed,
// multiply_add, store_rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/attention/tf32/attention_tf32.h"
#include "kernels/cuda/attention/tf32/attention_tf32_operand.cuh"

namespace quern::kernels::cuda {

template <int kD>
struct FloatRows : PaddedRows<float, kD> {
  using PaddedRows<float, kD>::kBytes;
  // This lane's address for rows 2t and 2t + 1 as k of B tiles: kWide features from kWide g on.
  template <int kWide>
  static __device__ __forceinline__ uint32_t feature_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 4 * 2 * kBytes + lane / 4 * (4 * kWide);
  }
};
static_assert(FloatRows<64>::kBytes == tf32_row_bytes({64, 0, 0}));

__device__ __forceinline__ float load_shared_float(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

// The warp's rows as A, read from shared memory when needed. `address`: the rows' plus
// square_lane().
template <bool kSplit, int kD>
struct RowsInShared {
  uint32_t address;
  template <int kM>
  __device__ __forceinline__ void read(Operand<kSplit, 4> (&a)[kM], int k) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      uint32_t r[4];
      ldmatrix(r, address + m * 16 * FloatRows<kD>::kBytes + k * 32);
#pragma unroll
      for (int i = 0; i < 4; ++i) a[m].set(i, __uint_as_float(r[i]));
    }
  }
};

// The same operands, read once.
template <int kM, int kD>
struct RowsInRegisters {
  Operand<false, 4> fragments[kD / 8][kM];
  __device__ __forceinline__ void read(Operand<false, 4> (&a)[kM], int k) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) a[m] = fragments[k][m];
  }
};

// Q of a block of queries, in registers where they suffice. All threads call it, after starting
// their copies.
template <bool kSplit, int kM, int kD>
__device__ __forceinline__ auto hold_queries(const RowsInShared<kSplit, kD>& rows) {
  if constexpr (!kSplit && kM * kD <= kTf32RegisterQueries) {
    wait_for_copies();
    __syncthreads();
    RowsInRegisters<kM, kD> held;
#pragma unroll
    for (int k = 0; k < kD / 8; ++k) rows.read(held.fragments[k], k);
    return held;
  } else {
    return rows;
  }
}

// scores = rows columns^T. `columns`: address of a tile of 8 kN rows, plus column_lane(). kSteps of
// mma side by side: more hide more latency and need more registers.
template <bool kSplit, int kD, int kSteps, int kM, int kN, class Rows>
__device__ __forceinline__ void multiply_transposed(float (&scores)[kM][kN][4], const Rows& rows,
                                                    uint32_t columns) {
  constexpr int kLows = kM * kN <= 2 && kSteps == kD / 8 ? 2 : 1;
  ProductSum<kSplit, kLows> sums[kM][kN];
  constexpr bool kFlush = kSplit && kD / 8 > kFlushSteps;
  if constexpr (kFlush) clear(scores);
#pragma unroll kSteps
  for (int k = 0; k < kD / 8; ++k) {
    Operand<kSplit, 4> a[kM];
    rows.read(a, k);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t r[4];
      ldmatrix(r, columns + n * 8 * FloatRows<kD>::kBytes + k * 32);
      Operand<kSplit, 2> b[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) b[i / 2].set(i % 2, __uint_as_float(r[i]), kCutOperand<kD>);
      multiply(sums, n, a, b);
    }
    if constexpr (kFlush) {
      if (k % kFlushSteps == kFlushSteps - 1 && k != kD / 8 - 1) flush(sums, scores);
    }
  }
  for_each_element<kM, kN>([&](int m, int n, int i) {
    const float sum = sums[m][n].value(i);
    scores[m][n][i] = kFlush ? scores[m][n][i] + sum : sum;
  });
}

// Loads rows 2t and 2t + 1 of kWide neighbouring features, as k of kWide tiles of B. With more
// tiles, the next kWide are 8 kWide features further.
template <int kWide, bool kCut, bool kSplit, int kTiles>
__device__ __forceinline__ void load_features(Operand<kSplit, 2> (&b)[kTiles], uint32_t address,
                                              int row_bytes) {
#pragma unroll
  for (int n = 0; n < kTiles; n += kWide) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t source = address + n * 32 + i * row_bytes;
      float x[kWide];
      if constexpr (kWide == 4) {
        const float4 y = load_shared_float4(source);
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
      } else if constexpr (kWide == 2) {
        const float2 y = load_shared_float2(source);
        x[0] = y.x, x[1] = y.y;
      } else {
        x[0] = load_shared_float(source);
      }
#pragma unroll
      for (int j = 0; j < kWide; ++j) b[n + j].set(i, x[j], kCut);
    }
  }
}

// Scores as A: the accumulators of a 16 x 8 tile are a fragment when its k is taken in the order 0,
// 2, 4, 6, 1, 3, 5, 7.
template <bool kSplit, int kM, int kN>
struct ScoresAsRows {
  Operand<kSplit, 4> fragments[kN][kM];

  __device__ __forceinline__ explicit ScoresAsRows(const float (&scores)[kM][kN][4]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) fragments[n][m].set(i, scores[m][n][score(i)]);
      }
    }
  }
  // Maps a fragment's register i to a score of its tile, and the other way round.
  static constexpr int score(int i) {
    return i / 2 + i % 2 * 2;
  }
};

// The features that a lane holds of a product with kD of them. From each 8 kWide of them it loads
// kWide neighbours, one for each of kWide tiles of B. So feature 8 kWide f + 2 kWide t + kWide i +
// j is in tile kWide f + j, element i of the pair. The high part of a cut operand is the loaded
// register, and mma needs a tile's two registers adjacent. Those of neighbours loaded together are
// not, so cut operands are loaded one at a time.
template <bool kSplit, int kD>
inline constexpr int kFeatureWidth = kSplit&& kCutOperand<kD> ? 1 : (kD % 32 == 0 ? 4 : 2);

// out += rows columns. The rows of `columns`, the address of a tile of 8 kN rows, are taken in the
// order of the scores' columns.
template <bool kSplit, int kD, int kM, int kN>
__device__ __forceinline__ void multiply_add(float (&out)[kM][kD / 8][4],
                                             const ScoresAsRows<kSplit, kM, kN>& rows,
                                             uint32_t columns) {
  using Rows = FloatRows<kD>;
  constexpr int kWide = kFeatureWidth<kSplit, kD>, kTiles = kWide == 1 ? 2 : kWide;
  const uint32_t lane = columns + Rows::template feature_lane<kWide>();
#pragma unroll
  for (int f = 0; f < kD / 8; f += kTiles) {
    ProductSum<kSplit> sums[kM][kTiles];
    for_each_element<kM, kTiles>([&](int m, int j, int i) {
      if constexpr (!kSplit) sums[m][j].high[i] = out[m][f + j][i];
    });
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      Operand<kSplit, 2> b[kTiles];
      load_features<kWide, kCutOperand<kD>>(b, lane + n * 8 * Rows::kBytes + f * 32, Rows::kBytes);
      multiply(sums, 0, rows.fragments[n], b);
    }
    for_each_element<kM, kTiles>([&](int m, int j, int i) {
      const float sum = sums[m][j].value(i);
      out[m][f + j][i] = kSplit ? out[m][f + j][i] + sum : sum;
    });
  }
}

// x[row, :] = values from multiply_add, for the first `rows` of the warp's rows; x points at the
// first.
template <bool kSplit, int kD, int kM>
__device__ __forceinline__ void store_rows(float* x, int64_t stride, int rows, int D,
                                           const float (&values)[kM][kD / 8][4], bool vectors) {
  constexpr int kWide = kFeatureWidth<kSplit, kD>;
#pragma unroll
  for (int r = 0; r < 2 * kM; ++r) {
    const int row = 8 * r + lane_row();
    if (row >= rows) continue;
#pragma unroll
    for (int f = 0; f < kD / 8; f += kWide) {
      const int d = 8 * f + lane_column() * kWide;
      if (d >= D) continue;  // D is a multiple of 8, and d of 2 kWide
      float part[2 * kWide];
#pragma unroll
      for (int e = 0; e < 2 * kWide; ++e) {
        part[e] = values[r / 2][f + e % kWide][r % 2 * 2 + e / kWide];
      }
      float* const target = x + row * stride + d;
      if (vectors) {
        store_vec(target, part);
      } else {
#pragma unroll
        for (int e = 0; e < 2 * kWide; ++e) target[e] = part[e];
      }
    }
  }
}

// P from a score.
__device__ __forceinline__ float recompute(float s, float scale2, float lse2) {
  return fast_exp2(fmaf(s, scale2, -lse2));
}

}  // namespace quern::kernels::cuda
