// Tensor maps: what the tensor memory accelerator (TMA) needs to know of a BF16 tensor in global
// memory, (B, T, heads, D) or a stack of matrices, to copy tiles between it and shared memory.
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

// `matrices` row-major matrices, one after the other, with `pitch` elements (a multiple of 8) from
// row to row; x is aligned to 16 bytes.
struct MatrixStack {
  const bfloat16* x;
  int64_t matrices, rows, columns, pitch;
};

// The map for panels of `rows` (at most 256) rows by `columns` (16, 32 or 64) columns, swizzled as
// SwizzledTile's. What lies beyond a matrix's rows or columns reads as zeros. Throws when the
// driver refuses.
CUtensorMap make_panel_map(const MatrixStack& stack, int rows, int columns);

}  // namespace quern::kernels::cuda
