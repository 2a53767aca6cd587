// Scales D in place: the product over no terms (k = 0).
#pragma once

#include <cstdint>

#include "base/stream.h"

namespace quern::kernels::cuda {

// d = beta d for `batch` row-major (m, n) matrices: ld elements from row to row, stride from matrix
// to matrix. beta 0 does not read d. TD: float, bfloat16.
template <class TD>
void scale_matrices(TD* d, int64_t m, int64_t n, int64_t ld, int64_t batch, int64_t stride,
                    float beta, Stream stream);

}  // namespace quern::kernels::cuda
