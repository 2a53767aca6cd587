// FP8 matrices on the host, for the tests of their kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/half.h"
#include "kernels/fp8.h"

namespace quern::testing_support {

using kernels::ScaleBlocks;

// Memory for a matrix (rows, depth), filled with what no kernel writes.
struct Fp8Buffer {
  int64_t rows, depth;
  kernels::ScaleLayout layout;
  std::vector<float8> values;
  std::vector<float> scales;

  Fp8Buffer(int64_t rows, int64_t depth, ScaleBlocks blocks)
      : rows(rows),
        depth(depth),
        layout{blocks, kernels::fp8_extent(rows), kernels::fp8_extent(depth)},
        values(static_cast<size_t>(layout.rows * layout.depth), float8::from_bits(0x7f)),
        scales(static_cast<size_t>(layout.size()), std::nanf("")) {}

  kernels::Fp8Output output() { return {values.data(), scales.data(), layout.blocks}; }
  kernels::Fp8Matrix matrix() const { return {values.data(), scales.data(), layout.blocks}; }

  double value(int64_t row, int64_t k) const {  // as stored, without its scale
    return static_cast<float>(values[static_cast<size_t>(row * layout.depth + k)]);
  }
  double scale(int64_t row, int64_t k) const {
    return scales[static_cast<size_t>(layout.at(row, k))];
  }
  double operator()(int64_t row, int64_t k) const { return value(row, k) * scale(row, k); }
};

// Normally distributed, with magnitudes that differ between rows and between columns.
inline std::vector<bfloat16> random_matrix(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> of_col(static_cast<size_t>(cols));
  for (float& factor : of_col) factor = std::exp2(2.0f * normal(engine));
  std::vector<bfloat16> x;
  for (int64_t r = 0; r < rows; ++r) {
    const float factor = std::exp2(3.0f * normal(engine));
    for (int64_t c = 0; c < cols; ++c) {
      x.emplace_back(normal(engine) * factor * of_col[static_cast<size_t>(c)]);
    }
  }
  return x;
}

}  // namespace quern::testing_support
