// To FP8, a tile of 128 x 128 elements at a time.
#include "kernels/quantize.h"

#include <algorithm>

#include "base/dtype.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/norm_rows.h"
#include "kernels/cpu/swiglu_math.h"

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

// row(to, r, c, count) writes elements [c, c + count) of row r of the matrix (rows, cols).
template <class Row>
void quantize_rows(const Fp8Output& out, const Fp8Output& out_t, int64_t rows, int64_t cols,
                   const Row& row) {
  const int64_t stored_rows = fp8_extent(rows), stored_cols = fp8_extent(cols);
  const int64_t across = ceil_div(stored_cols, kTile);
  parallel_for(ceil_div(stored_rows, kTile) * across, 1, [&](int64_t tile, int64_t) {
    const int64_t top = tile / across * kTile, left = tile % across * kTile;
    const int64_t height = std::clamp<int64_t>(rows - top, 0, kTile);
    const int64_t width = std::clamp<int64_t>(cols - left, 0, kTile);
    Lines lines = {}, columns;
    for (int64_t r = 0; r < height; ++r) row(lines[r], top + r, left, width);
    store_tile(out, lines, top, left, stored_rows, stored_cols);
    if (out_t.values == nullptr) return;  // no transposition
    for (int64_t r = 0; r < kTile; ++r) {
      for (int64_t c = 0; c < kTile; ++c) columns[c][r] = lines[r][c];
    }
    store_tile(out_t, columns, left, top, stored_cols, stored_rows);
  });
}

}  // namespace

void quantize(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* x, int64_t rows,
              int64_t cols, int64_t ld, Stream) {
  quantize_rows(out, out_t, rows, cols, [=](bfloat16* to, int64_t r, int64_t c, int64_t count) {
    std::copy_n(x + r * ld + c, count, to);
  });
}

template <class TX>
void quantize_norm(const Fp8Output& out, const Fp8Output& out_t, const NormOutput<TX>& norm,
                   int64_t rows, int64_t C, Stream) {
  const auto run = [&]<bool kCentred>(std::bool_constant<kCentred>) {
    quantize_rows(out, out_t, rows, C, [=](bfloat16* to, int64_t r, int64_t c, int64_t count) {
      const float mean = kCentred ? norm.mean[r] : 0.0f;
      write_normed<kCentred>(to, norm.x + r * C + c, norm.w + c, kCentred ? norm.b + c : nullptr,
                             mean, norm.rstd[r], count);
    });
  };
  norm.b == nullptr ? run(std::false_type()) : run(std::true_type());
}
template void quantize_norm(const Fp8Output&, const Fp8Output&, const NormOutput<bfloat16>&,
                            int64_t, int64_t, Stream);
template void quantize_norm(const Fp8Output&, const Fp8Output&, const NormOutput<float>&, int64_t,
                            int64_t, Stream);

void quantize_swiglu(const Fp8Output& out, const Fp8Output& out_t, const bfloat16* gate_up,
                     int64_t rows, int64_t F, Stream) {
  quantize_rows(out, out_t, rows, F, [=](bfloat16* to, int64_t r, int64_t c, int64_t count) {
    const bfloat16 *gate = gate_up + 2 * r * F + c, *up = gate + F;
    vector_for(0, count, [=](int64_t i) {
      to[i] = bfloat16(swiglu(static_cast<float>(gate[i]), static_cast<float>(up[i])));
    });
  });
}

void quantize_swiglu_gradient(const Fp8Output& out, const Fp8Output& out_t,
                              const Fp8Output& output_t, const bfloat16* gate_up,
                              const bfloat16* dy, int64_t rows, int64_t F, Stream stream) {
  quantize_rows(out, out_t, rows, 2 * F, [=](bfloat16* to, int64_t r, int64_t c, int64_t count) {
    const bfloat16 *gate = gate_up + 2 * r * F, *up = gate + F, *grad = dy + r * F;
    const auto gradient = [=](int64_t f) {
      return swiglu_gradient(static_cast<float>(gate[f]), static_cast<float>(up[f]),
                             static_cast<float>(grad[f]));
    };
    const int64_t of_gate = std::clamp<int64_t>(F - c, 0, count);
    vector_for(0, of_gate, [=](int64_t i) { to[i] = bfloat16(gradient(c + i).gate); });
    vector_for(of_gate, count, [=](int64_t i) { to[i] = bfloat16(gradient(c + i - F).up); });
  });
  if (output_t.values != nullptr) quantize_swiglu({}, output_t, gate_up, rows, F, stream);
}

}  // namespace quern::kernels::cpu
