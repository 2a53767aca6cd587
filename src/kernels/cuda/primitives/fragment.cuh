// A fragment: a wgmma product D of 64 rows by N columns, spread over the 128 threads of a warpgroup
// as float d[N / 2] each. With row and column of FragmentPlace,
//   d[i] = D[row + fragment_row(i)][column + fragment_column(i)].
// So a thread has parts of two rows, 8 apart, and the four threads of a quad share a row.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/primitives/instructions.cuh"

namespace quern::kernels::cuda {

struct FragmentPlace {
  int row, column;

  __device__ explicit FragmentPlace(int thread_of_warpgroup) {
    row = thread_of_warpgroup / 32 * 16 + thread_of_warpgroup % 32 / 4;
    column = thread_of_warpgroup % 4 * 2;
  }
};
__host__ __device__ constexpr int fragment_row(int i) {
  return i / 2 % 2 * 8;
}
__host__ __device__ constexpr int fragment_column(int i) {
  return i / 4 * 8 + i % 2;
}

// Reductions over the threads of a quad; each gets the result.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The maximum of `least` and all elements of the thread's row i (0 or 1).
template <int kRegisters>
__device__ __forceinline__ float row_max(const float (&d)[kRegisters], int i, float least) {
  float highest[2] = {least, -INFINITY};  // two chains of dependent instructions
#pragma unroll
  for (int c = 2 * i; c < kRegisters; c += 4) {
    highest[0] = fmaxf(highest[0], d[c]);
    highest[1] = fmaxf(highest[1], d[c + 1]);
  }
  return quad_max(fmaxf(highest[0], highest[1]));
}

// Sets the elements of row i from column visible[i] on, counted from the thread's first, to -inf.
template <int kRegisters>
__device__ __forceinline__ void mask_columns(float (&d)[kRegisters], const int (&visible)[2]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) {
    if (fragment_column(i) >= visible[i / 2 % 2]) d[i] = -INFINITY;
  }
}

// Multiplies both rows by their factors.
template <int kRegisters>
__device__ __forceinline__ void scale_rows(float (&d)[kRegisters], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) d[i] *= factor[i / 2 % 2];
}

// Rounds D to BF16 as the A of the next product: a[s] has columns 16 s to 16 s + 15.
template <int kRegisters>
__device__ __forceinline__ void pack_operand(uint32_t (&a)[kRegisters / 8][4],
                                             const float (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters / 2; ++i) a[i / 4][i % 4] = pack_bf16(d[2 * i], d[2 * i + 1]);
}

// Stores four 8 x 8 BF16 matrices, a step of a packed fragment (1 and 3 are below 0 and 2). Lane i
// passes the address of row i % 8 of matrix i / 8, and has two elements of each matrix.
__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
__device__ __forceinline__ void store_matrices(void* row, const uint32_t (&x)[4]) {
  store_matrices(shared_address(row), x);
}

// Threads exchange fragments as floats in the order of their registers. float4 number 128 j +
// thread holds the thread's elements of columns 8 j to 8 j + 7, from both of its rows. Calls
// store(128 j, four).
template <int kRegisters, class Store>
__device__ __forceinline__ void store_fours(const float (&d)[kRegisters], Store store) {
#pragma unroll
  for (int j = 0; j < kRegisters / 4; ++j) {
    store(j * 128, make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]));
  }
}

// Transposes 4 words of each of 4 neighbouring lanes: word w of lane l becomes word l of lane w.
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

// x[r, c] = factor d[r, c] for the first `rows` of a fragment's 64 rows and the first `columns`, a
// multiple of 8; x points at the first. A lane stores 16 bytes where 4 neighbours hold 32 columns.
template <int kRegisters>
__device__ __forceinline__ void store_fragment(bfloat16* x, int64_t stride, int rows, int columns,
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
      if (row < rows && 8 * j + 4 * place.column < columns) {
        *reinterpret_cast<uint4*>(out + 8 * j + 4 * place.column) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
#pragma unroll
    for (int j = kGroups / 4 * 4; j < kGroups; ++j) {
      if (row < rows && 8 * j < columns) {
        *reinterpret_cast<uint32_t*>(out + 8 * j + place.column) = pairs[j];
      }
    }
  }
}

}  // namespace quern::kernels::cuda
