// The steps of the backward attention between the products, on fragments as wgmma leaves them in
// registers (see FragmentPlace): S to P, dP to dS, and the way out.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention_hopper_softmax.cuh"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace quern::kernels::cuda {

// lse in units of log2. Rows that see no key, and those beyond the end, get +inf: their P is 0, and
// no inf - inf arises.
__device__ __forceinline__ float lse_log2(float lse) {
  return lse == -INFINITY ? INFINITY : lse * kLog2E;
}

// P^T = exp2(S^T - lse), rounded. lse from this thread's first column on. With a mask, row r is
// seen by the queries from first[r] on, counted from this thread's first column. S^T itself is left
// alone: writing to registers of a product while another one runs would make the compiler serialize
// them.
template <bool kMasked, int kRegisters>
__device__ __forceinline__ void transposed_probabilities(uint32_t (&p)[kRegisters / 8][4],
                                                         const float (&scores)[kRegisters],
                                                         float scale, const float* lse,
                                                         const int (&first)[2]) {
#pragma unroll
  for (int j = 0; j < kRegisters / 4; ++j) {
    float of_column[2];
    load_vec(of_column, lse + 8 * j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float pair[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        pair[e] = fast_exp2(fmaf(scores[4 * j + 2 * r + e], scale, -of_column[e]));
        if (kMasked && 8 * j + e < first[r]) pair[e] = 0.0f;
      }
      p[j / 2][j % 2 * 2 + r] = pack_bf16(pair[0], pair[1]);
    }
  }
}

// dS = P (dP - delta) of two neighbours, rounded. P comes rounded too: what dV is made from.
__device__ __forceinline__ uint32_t score_gradients(uint32_t p, float dp_low, float dp_high,
                                                    float delta_low, float delta_high) {
  const float p_low = __uint_as_float(p << 16);
  const float p_high = __uint_as_float(p & 0xFFFF0000u);
  return pack_bf16(p_low * (dp_low - delta_low), p_high * (dp_high - delta_high));
}

// The part of dO . O that one of a row's 4 threads adds: every fourth 8 columns.
template <int kD>
__device__ __forceinline__ float part_of_delta(const bfloat16* d_o, const bfloat16* o,
                                               bool o_vectors) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kD; i += 32) {
    const int column = i + static_cast<int>(threadIdx.x) % 4 * 8;
    if (column >= kD) continue;
    float x[8], y[8];
    load_vec(x, d_o + column);
    if (o_vectors) {
      load_vec(y, o + column);
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e) y[e] = to_float(o[column + e]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) sum = fmaf(x[e], y[e], sum);
  }
  return sum;
}

// dS^T of 64 keys by 64 queries, from the registers that hold it to rows of a tile in shared
// memory. A lane gives the address of one row of one of the four 8 x 8 matrices that it stores at a
// time.
template <class Scores, int kSteps>
__device__ __forceinline__ void store_score_gradients(uint8_t* tile, int first_row,
                                                      const uint32_t (&ds)[kSteps][4]) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize;
  const int matrix = thread % kWarpSize / 8;  // rows 8 (matrix % 2), columns 8 (matrix / 2)
  const int row = first_row + thread / kWarpSize * 16 + matrix % 2 * 8 + thread % 8;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint32_t address = shared_address(tile + Scores::offset(row, 16 * i + matrix / 2 * 8));
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(ds[i][0]), "r"(ds[i][1]), "r"(ds[i][2]), "r"(ds[i][3])
                 : "memory");
  }
}

// 4 words of each of 4 neighbouring lanes, transposed: word w of lane l becomes word l of lane w.
__device__ __forceinline__ void transpose_quad(uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if ((w & bit) != 0) continue;
      const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, upper ? words[w] : words[w + bit], bit);
      (upper ? words[w] : words[w + bit]) = other;
    }
  }
}

// x[r, :] = factor d[r, :] for the 64 rows of a fragment, x pointing at the first, of which `rows`
// exist. 16 bytes a lane where 4 neighbours hold 32 columns.
template <int kRegisters>
__device__ __forceinline__ void store_fragment(bfloat16* x, int64_t stride, int rows,
                                               const float (&d)[kRegisters], float factor,
                                               const FragmentPlace& place) {
  constexpr int kGroups = kRegisters / 4;  // of 8 columns
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = place.row + 8 * r;
    uint32_t pairs[kGroups];
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      pairs[j] = pack_bf16(factor * d[4 * j + 2 * r], factor * d[4 * j + 2 * r + 1]);
    }
    bfloat16* const out = x + row * stride;
#pragma unroll
    for (int j = 0; j + 4 <= kGroups; j += 4) {
      uint32_t words[4] = {pairs[j], pairs[j + 1], pairs[j + 2], pairs[j + 3]};
      transpose_quad(words);
      if (row < rows) {
        *reinterpret_cast<uint4*>(out + 8 * j + 4 * place.column) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
#pragma unroll
    for (int j = kGroups / 4 * 4; j < kGroups; ++j) {
      if (row < rows) *reinterpret_cast<uint32_t*>(out + 8 * j + place.column) = pairs[j];
    }
  }
}

}  // namespace quern::kernels::cuda
