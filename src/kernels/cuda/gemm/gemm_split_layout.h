// Memory layouts of a split product's operands, as stored and as planes of BF16 parts.
#pragma once

#include "base/half.h"
#include "kernels/cuda/gemm/gemm_split.h"
#include "kernels/cuda/plan.h"

namespace quern::kernels::cuda {

inline constexpr int64_t kSplitAlignment = 256;  // of the scratch memory and its parts, bytes

// `matrices` row-major matrices: ld elements from row to row, stride from matrix to matrix.
struct MatrixLayout {
  int64_t matrices, rows, columns, ld, stride;
};

// Elements between rows of a plane: the columns, padded so that rows start at 16 bytes.
inline int64_t plane_pitch(int64_t columns) {
  return (columns + 7) / 8 * 8;
}

// The operands as stored. A repeated operand is one matrix.
inline MatrixLayout layout_a(const GemmProblem& p) {
  return {p.stride_a == 0 ? 1 : p.batch, p.transpose_a != 0 ? p.k : p.m,
          p.transpose_a != 0 ? p.m : p.k, p.lda, p.stride_a};
}
inline MatrixLayout layout_b(const GemmProblem& p) {
  return {p.stride_b == 0 ? 1 : p.batch, p.transpose_b != 0 ? p.n : p.k,
          p.transpose_b != 0 ? p.k : p.n, p.ldb, p.stride_b};
}
inline MatrixLayout layout_d(const GemmProblem& p) {
  return {p.batch, p.m, p.n, p.ldd, p.stride_d};
}

inline int64_t plane_elements(const MatrixLayout& layout) {
  return layout.matrices * layout.rows * plane_pitch(layout.columns);
}
inline int64_t plane_bytes(const MatrixLayout& layout) {
  const int64_t bytes = kSplitPlanes * plane_elements(layout) * int64_t{sizeof(bfloat16)};
  return ceil_div(bytes, kSplitAlignment) * kSplitAlignment;
}

// Elements between rows of the sums of the parts of K: rows start at 16 bytes.
inline int64_t sum_pitch(const GemmProblem& p) {
  return ceil_div(p.n, 4) * 4;
}

}  // namespace quern::kernels::cuda
