// To FP8, a tile of 128 x 128 elements at a time.
#include "kernels/quantize.h"

#include <algorithm>

#include "base/dtype.h"
#include "kernels/common/parallel.h"
#include "kernels/common/pointwise_math.h"

namespace quern::kernels::cpu {

namespace {

constexpr int64_t kTile = kScaleBlock;

// A tile's elements, zero where the matrix has none. Rows of `lines` are blocks of their own under
// ScaleBlocks::rows.
using Lines = bfloat16[kTile][kTile];

// Magnitudes order as their bits do, and NaN is above all.
uint16_t larger(uint16_t a, bfloat16 x) {
  return std::max(a, static_cast<uint16_t>(x.bits & 0x7fffu));
}

BlockScale scale_of(uint16_t largest) {
  return BlockScale(static_cast<float>(bfloat16::from_bits(largest)));
}

// Writes a tile of the matrix that starts at (row, k) of a stored (rows, depth).
void store_tile(const Fp8Output& out, const Lines& lines, int64_t row, int64_t k, int64_t rows,
                int64_t depth) {
  if (out.values == nullptr) return;
  const ScaleLayout layout{out.blocks, rows, depth};
  const int64_t height = std::min(kTile, rows - row), width = std::min(kTile, depth - k);
  uint16_t of_row[kTile] = {}, of_tile = 0;
  for (int64_t r = 0; r < height; ++r) {
    for (int64_t c = 0; c < width; ++c) of_row[r] = larger(of_row[r], lines[r][c]);
    of_tile = std::max(of_tile, of_row[r]);
  }
  for (int64_t r = 0; r < height; ++r) {
    const BlockScale s = scale_of(out.blocks == ScaleBlocks::rows ? of_row[r] : of_tile);
    out.scales[layout.at(row + r, k)] = s.scale;
    float8* to = out.values + (row + r) * depth + k;
    for (int64_t c = 0; c < width; ++c) {
      to[c] = float8(static_cast<float>(lines[r][c]) * s.inverse);
    }
  }
}

// element(r, c) gives the matrix (rows, cols).
template <class Element>
void quantize_elements(const Fp8Output& out, const Fp8Output& out_t, int64_t rows, int64_t cols,
                       const Element& element) {
  const int64_t stored_rows = fp8_extent(rows), stored_cols = fp8_extent(cols);
  const int64_t across = ceil_div(stored_cols, kTile);
  parallel_for(ceil_div(stored_rows, kTile) * across, 1, [&](int64_t tile, int64_t) {
    const int64_t row = tile / across * kTile, col = tile % across * kTile;
    Lines lines, columns;
    for (int64_t r = 0; r < kTile; ++r) {
      for (int64_t c = 0; c < kTile; ++c) {
        const bool inside = row + r < rows && col + c < cols;
        lines[r][c] = columns[c][r] = inside ? element(row + r, col + c) : bfloat16::from_bits(0);
      }
    }
    store_tile(out, lines, row, col, stored_rows, stored_cols);
    store_tile(out_t, columns, col, row, stored_cols, stored_rows);
  });
}

}  // namespace

void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream) {
  quantize_elements(out, out_t, rows, cols, [=](int64_t r, int64_t c) { return x[r * ld + c]; });
}

void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream) {
  quantize_elements(out, out_t, rows, F, [=](int64_t r, int64_t c) {
    const bfloat16* gate = gate_up + 2 * r * F + c;
    return bfloat16(Silu{}.forward(static_cast<float>(*gate)) * static_cast<float>(gate[F]));
  });
}

void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream) {
  quantize_elements(out, out_t, rows, 2 * F, [=](int64_t r, int64_t c) {
    const int64_t of = c % F;
    const auto gate = static_cast<float>(gate_up[2 * r * F + of]);
    const auto up = static_cast<float>(gate_up[2 * r * F + F + of]);
    const auto grad = static_cast<float>(dy[r * F + of]);
    const float s = Sigmoid{}.forward(gate);
    return bfloat16(c < F ? grad * up * s * (1.0f + gate * (1.0f - s)) : grad * gate * s);
  });
}

}  // namespace quern::kernels::cpu
