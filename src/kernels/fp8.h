// FP8 matrices: E4M3 values and one FP32 scale for each block of them; an element is value times
// scale. They are the operands of scaled_gemm.h, laid out as tensor cores read them: both
// operands store the summed dimension last.
//
// A matrix (rows, depth) is stored with both extents rounded up to kFp8Padding, the rest zero, so
// that every matrix has the alignment that the products need.
#pragma once

#include <cstdint>

#include "base/float8.h"
#include "base/host_device.h"
#include "base/round_up.h"

namespace quern::kernels {

// The elements that share a scale. rows: 128 of one row. tiles: 128 rows by 128.
enum class ScaleBlocks : uint8_t { rows, tiles };

inline constexpr int64_t kScaleBlock = 128;
inline constexpr int64_t kFp8Padding = 16;

constexpr int64_t fp8_extent(int64_t extent) {  // as stored
  return round_up(extent, kFp8Padding);
}

// Scales of a stored matrix in cuBLASLt's layouts. Row blocks: (blocks of depth, rows). Tiles:
// (blocks of rows, blocks of depth), the latter extent padded to a multiple of 4.
struct ScaleLayout {
  ScaleBlocks blocks = ScaleBlocks::rows;
  int64_t rows = 0, depth = 0;  // as stored

  constexpr int64_t size() const {
    const int64_t along = ceil_div(depth, kScaleBlock);
    return blocks == ScaleBlocks::rows ? along * rows
                                       : ceil_div(rows, kScaleBlock) * round_up(along, 4);
  }
  // The scale of the block with element (row, k).
  QUERN_HD int64_t at(int64_t row, int64_t k) const {
    const int64_t block = k / kScaleBlock;
    if (blocks == ScaleBlocks::rows) return block * rows + row;
    const int64_t along = (depth + kScaleBlock - 1) / kScaleBlock;
    return row / kScaleBlock * ((along + 3) / 4 * 4) + block;
  }
};

struct Fp8Matrix {
  const float8* values = nullptr;
  const float* scales = nullptr;
  ScaleBlocks blocks = ScaleBlocks::rows;
};

// Memory for a matrix; no values: it is not wanted.
struct Fp8Output {
  float8* values = nullptr;
  float* scales = nullptr;
  ScaleBlocks blocks = ScaleBlocks::rows;
};

// The scale of a block whose largest magnitude is `largest`, and the factor of its elements before
// rounding. The bound keeps both finite. A block with a NaN or an infinity has no finite scale, so
// that its products are NaN.
struct BlockScale {
  float scale, inverse;

  QUERN_HD explicit BlockScale(float largest) {
    constexpr float kLeast = 0x1p-100f;
    if (largest < kLeast) largest = kLeast;
    scale = largest * (1.0f / float8::kLargest);
    inverse = float8::kLargest / largest;
  }
};

}  // namespace quern::kernels
