// Tensor maps: what the tensor memory accelerator (TMA) needs to know of a (B, T, heads, D) BF16
// tensor in global memory, to copy tiles of rows between it and shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/half.h"

namespace quern::kernels::cuda {

// Columns of a panel: a tile of D columns lies in shared memory as D / span panels, one after the
// other, each of all its rows by span columns, swizzled in 2 span bytes (see SwizzledTile).
constexpr int panel_columns(int64_t D) {
  return D % 64 == 0 ? 64 : D % 32 == 0 ? 32 : 16;
}

// Whether TMA can address a tensor: base pointer and strides (elements along batch, time, head) in
// multiples of 16 bytes, where an extent above 1 uses them, and extents of at least 1.
bool tma_takes(const void* x, const int64_t (&strides)[3], int64_t B, int64_t T, int64_t heads,
               int64_t D);

// The map for tiles of `rows` (at most 256) consecutive tokens of one head, all D (a multiple of
// 16) columns. Rows beyond T read as zeros and are not written. Throws when the driver refuses.
CUtensorMap make_tile_map(const bfloat16* x, const int64_t (&strides)[3], int64_t B, int64_t T,
                          int64_t heads, int64_t D, int rows);

}  // namespace quern::kernels::cuda
