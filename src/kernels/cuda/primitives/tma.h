// Tensor maps describe BF16 tensors in global memory, (B, T, heads, D) or a stack of matrices, to
// the tensor memory accelerator (TMA), which copies tiles between them and shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/half.h"

namespace quern::kernels::cuda {

// Columns of a panel, `span`. A tile of D columns lies in shared memory as D / span consecutive
// panels. Each has all rows by span columns, swizzled in 2 span bytes (see SwizzledTile).
constexpr int panel_columns(int64_t D) {
  return D % 64 == 0 ? 64 : D % 32 == 0 ? 32 : 16;
}

// Whether TMA can address a tensor. D must be a multiple of 8, the base pointer and the strides
// (elements along batch, time, head) of extents above 1 multiples of 16 bytes, extents at least 1.
bool tma_takes(const void* x, const int64_t (&strides)[3], int64_t B, int64_t T, int64_t heads,
               int64_t D);

// The map for tiles of `rows` (at most 256) consecutive tokens of one head by `columns`, at least
// D. Elements beyond T and D read as zeros and are not written. If columns exceed D (`padded`), one
// copy moves one panel. Throws when columns are fewer than D, or the driver refuses.
CUtensorMap make_tile_map(const bfloat16* x, const int64_t (&strides)[3], int64_t B, int64_t T,
                          int64_t heads, int64_t D, int rows, int columns);

// `matrices` row-major matrices, one after the other, with `pitch` elements (a multiple of 8) from
// row to row; x is aligned to 16 bytes.
struct MatrixStack {
  const bfloat16* x;
  int64_t matrices, rows, columns, pitch;
};

// The map for panels of `rows` (at most 256) rows by `columns` (16, 32 or 64) columns, swizzled as
// in SwizzledTile. Elements beyond a matrix's edges read as zeros. Throws if the driver refuses.
CUtensorMap make_panel_map(const MatrixStack& stack, int rows, int columns);

}  // namespace quern::kernels::cuda
