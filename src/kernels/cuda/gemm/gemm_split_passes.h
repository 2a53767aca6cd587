// The passes before and after the product of split operands: making the parts, and adding the
// shares of K. And the product over no terms (k = 0). All are bound by memory.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/stream.h"
#include "kernels/cuda/gemm/gemm_split_layout.h"

namespace quern::kernels::cuda {

// planes (matrices, 3, rows, plane_pitch) = the three BF16 parts of x, each rounded to nearest: hi
// of x, mid of x - hi, lo of x - hi - mid. The remainder is at most 2^-134, and 0 when x is 2^-110
// or more. Where hi would round to an infinity it is truncated instead. The padding is zero. Fewer
// than 2^34 elements; planes aligned to 16 bytes.
struct SplitSource {
  bfloat16* planes;
  const float* x;
  MatrixLayout layout;
};
void split_planes(const SplitSource& first, const SplitSource& second, Stream stream);

// d = alpha (sum over parts, in order) + beta d; beta 0 does not read d. sums is (parts,
// out.matrices, out.rows, pitch) with the pitch a multiple of 4, aligned to 16 bytes.
void sum_parts(float* d, const float* sums, const MatrixLayout& out, int64_t pitch, int parts,
               float alpha, float beta, Stream stream);

// d = beta d for `batch` row-major (m, n) matrices: ld elements from row to row, stride from matrix
// to matrix. beta 0 does not read d. TD: float, bfloat16.
template <class TD>
void scale_matrices(TD* d, int64_t m, int64_t n, int64_t ld, int64_t batch, int64_t stride,
                    float beta, Stream stream);

}  // namespace quern::kernels::cuda
