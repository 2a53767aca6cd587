// The tensor cores and copies of compute capability 8.0 as functions: mma.sync, ldmatrix, cp.async
// (PTX ISA, "Warp Level Matrix Instructions" and "Asynchronous copy"), and a tile in shared memory
// that they read without bank conflicts.
//
// Registers of mma.m16n8k16, with g = lane / 4 and t = lane % 4. A register of A holds two
// neighbours of a row, one of B two of a column, and one of C a single float:
//   A (16 x 16): a[0] at (g, 2t), a[1] at (g + 8, 2t), a[2] at (g, 2t + 8), a[3] at (g + 8, 2t + 8)
//   B (16 x 8):  b0 at rows 2t and 2t + 1 of column g, b1 eight rows below
//   C (16 x 8):  c[0], c[1] at (g, 2t), c[2], c[3] at (g + 8, 2t)
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/instructions.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace quern::kernels::cuda {

// c += a b
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices. Lane l passes the address of row l % 8 of matrix l / 8; r[i] is this
// lane's pair of matrix i: row g, columns 2t and 2t + 1.
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Loads the same matrices transposed: r[i] is rows 2t and 2t + 1 of column g.
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// Loads only the first two; the addresses of lanes 16 to 31 are ignored.
__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// Copies kBytes (4, 8 or 16) to shared memory, or zeros, without reading, unless `present`. Both
// addresses are aligned to kBytes.
template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t destination, const void* source, bool present) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  const auto global = __cvta_generic_to_global(source);
  const int bytes = present ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(destination), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(destination), "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// Waits for this thread's copies. Those of others are visible after a barrier.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" : : "r"(address), "r"(x) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, const uint4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ float2 load_shared_float2(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_shared_float4(uint32_t address) {
  const uint4 x = load_shared_16(address);
  return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z),
                     __uint_as_float(x.w));
}

// Release at GPU scope: earlier work of this thread and, behind a barrier, of other threads is in
// L2 when the value is.
__device__ __forceinline__ void store_release(uint32_t* p, uint32_t x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;"
               :
               : "l"(__cvta_generic_to_global(p)), "r"(x)
               : "memory");
}

// p[0..4) = x, and p[0..4) += x, each sum atomic; p is aligned to 16 bytes.
__device__ __forceinline__ void store_global_16(float* p, const float (&x)[4]) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(p)), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
}
__device__ __forceinline__ void add_global_16(float* p, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(p)), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;"
                 :
                 : "l"(__cvta_generic_to_global(p + i)), "f"(x[i])
                 : "memory");
  }
#endif
}

// Rows of kD elements, kD a multiple of 16, and 16 bytes of padding each. A row is then an odd
// number of 16-byte chunks long, so the 8 rows of a matrix that ldmatrix reads lie in 8 different
// groups of 4 banks. Every offset within a tile is a constant. An XOR of the row into the chunk
// would not give that for widths such as 80 and 96.
template <class T, int kD>
struct PaddedRows {
  static_assert(kD % 16 == 0);
  static constexpr int kPadding = kD * static_cast<int>(sizeof(T));  // its offset in a row
  static constexpr int kBytes = kPadding + 16;                       // of a row

  // This lane's address for ldmatrix of 16 rows of 32 bytes: as A, or for BF16 transposed as two B
  // tiles (rows are k, r[0] and r[1] are the first 8 columns, r[2] and r[3] the others). A pair of
  // its elements of 16 bits may be a float.
  static __device__ __forceinline__ uint32_t square_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 16 * kBytes + lane / 16 * 16;
  }
  // This lane's address for 16 rows as columns n of two B tiles (r[0] and r[1] are the first 8
  // rows, r[2] and r[3] the others), k along the row.
  static __device__ __forceinline__ uint32_t column_lane() {
    const uint32_t lane = threadIdx.x % kWarpSize;
    return (lane / 16 * 8 + lane % 8) * kBytes + lane / 8 % 2 * 16;
  }
};

}  // namespace quern::kernels::cuda
