// Matrix products by a warpgroup (128 threads, 64 rows of D): how operands lie in shared memory,
// how D and A lie in registers, and how the asynchronous products are ordered (PTX ISA,
// "Asynchronous warpgroup-level matrix instructions"). All 128 threads make each call together.
#pragma once

#include <cstdint>

#include "kernels/cuda/plan.h"
#include "kernels/cuda/primitives/fragment.cuh"
#include "kernels/cuda/primitives/instructions.cuh"
#include "kernels/cuda/primitives/mbarrier.cuh"
#include "kernels/cuda/primitives/tma.h"
#include "kernels/cuda/primitives/wgmma_instructions.cuh"

namespace quern::kernels::cuda {

inline constexpr int kWarpgroupSize = 128;
inline constexpr int kWgmmaDepth = 16;  // K of wgmma in BF16

// A tile of kRows by kColumns BF16 in shared memory, as load_tile_async writes it: consecutive
// panels of kSpan columns, with rows of 2 kSpan bytes. The 16-byte chunk c of a panel's row r is
// stored at c ^ (r % 8 kSpan / 64), so that 8 rows of one column hit all 32 banks.
template <int kRows, int kColumns>
struct SwizzledTile {
  static constexpr int kSpan = panel_columns(kColumns);
  static constexpr int kRowBytes = 2 * kSpan;
  static constexpr int kPanels = kColumns / kSpan;
  static constexpr int kPanelBytes = kRows * kRowBytes;
  static constexpr int kBytes = kRows * kColumns * 2;
  static_assert(kRows % 8 == 0 && kRows <= 256 && kColumns % 16 == 0);

  // The operand whose M or N index is the row and whose K index is the column: rows from `row` (a
  // multiple of 8) on and the first 16 columns. Add k_step(i) for columns 16 i to 16 i + 15.
  __device__ static __forceinline__ uint64_t k_major(const void* tile, int row = 0) {
    return descriptor(shared_address(tile) + row * kRowBytes, 16);
  }
  __device__ static constexpr uint64_t k_step(int i) {
    const int column = i * kWgmmaDepth;
    return static_cast<uint64_t>(column / kSpan * kPanelBytes + column % kSpan * 2) >> 4;
  }

  // The operand whose K index is the row and whose M or N index is the column: the first 16 rows,
  // columns from `column` (a multiple of kSpan) on. Add mn_step(i) for rows 16 i to 16 i + 15.
  __device__ static __forceinline__ uint64_t mn_major(const void* tile, int column = 0) {
    return descriptor(shared_address(tile) + column / kSpan * kPanelBytes, kPanelBytes);
  }
  __device__ static constexpr uint64_t mn_step(int i) {
    return static_cast<uint64_t>(i * kWgmmaDepth * kRowBytes) >> 4;
  }

  // Byte offset of element (row, column) from the tile's start (1024-byte aligned).
  __device__ static constexpr int offset(int row, int column) {
    const int chunk = (column % kSpan / 8) ^ (row % 8 * kSpan / 64);
    return column / kSpan * kPanelBytes + row * kRowBytes + chunk * 16 + column % 8 * 2;
  }

 private:
  // Bits 0-13: address; 16-29: leading byte offset, from panel to panel (not used by K-major, where
  // one instruction stays within a panel); 32-45: stride byte offset, from 8 rows to the next 8;
  // all three in units of 16 bytes; 62-63: swizzle.
  __device__ static __forceinline__ uint64_t descriptor(uint32_t address, uint32_t leading) {
    constexpr uint64_t swizzle = kSpan == 64 ? 1 : kSpan == 32 ? 2 : 3;
    constexpr uint64_t stride = 8 * kRowBytes >> 4;
    return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{leading >> 4} << 16 | stride << 32 |
           swizzle << 62;
  }
};

// Swizzled tiles are aligned to the swizzle pattern, 8 rows of up to 128 bytes. Dynamic shared
// memory is aligned to 16 bytes only.
inline constexpr int kTileAlignment = 1024;

__device__ __forceinline__ uint8_t* align_tiles(uint8_t* memory) {
  const uint32_t address = shared_address(memory);
  return memory + (kTileAlignment - address % kTileAlignment) % kTileAlignment;
}

// D += A B for 16 of K; N is twice D's registers. A is a descriptor of shared memory, or registers.
// Consecutive products into the same D need no wait between them.
template <Major kA, Major kB, int kRegisters>
__device__ __forceinline__ void wgmma(float (&d)[kRegisters], uint64_t a, uint64_t b,
                                      bool accumulate) {
  Wgmma<2 * kRegisters>::template multiply<kA, kB>(d, a, b, accumulate);
}
template <Major kB, int kRegisters>
__device__ __forceinline__ void wgmma(float (&d)[kRegisters], const uint32_t (&a)[4], uint64_t b,
                                      bool accumulate) {
  Wgmma<2 * kRegisters>::template multiply<kB>(d, a, b, accumulate);
}

// Called before the first product that uses registers written by other instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most the kPending latest groups are unfinished. Registers of finished groups still
// need `settle`; the shared memory that they read may be overwritten.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the computation of `never_negative` before the next wgmma_wait, so that it runs beside the
// products. ptxas moves that wait ahead of arithmetic, but not ahead of a side effect. This one, a
// trigger for profilers, never runs.
__device__ __forceinline__ void finish_before_wait(float never_negative) {
  if (never_negative < 0.0f) __prof_trigger(0);
}
// Keeps the compiler from reading a product's D, or reusing its A, before the preceding wgmma_wait,
// and from moving writes to them past the following wgmma_fence.
template <int kRegisters>
__device__ __forceinline__ void settle(float (&d)[kRegisters]) {
#pragma unroll
  for (int i = 0; i < kRegisters; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kSteps>
__device__ __forceinline__ void settle(uint32_t (&a)[kSteps][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// Called before a product that overwrites d, whose old values end here. To the compiler every
// product reads its D, so it would keep them until then.
template <int kRegisters>
__device__ __forceinline__ void forget(float (&d)[kRegisters]) {
#pragma unroll
  for (float& x : d) x = 0.0f;
  settle(d);
}

}  // namespace quern::kernels::cuda
