// The sum of the ranks' parts of a gradient, in the order of the ranks: N ranks give the bits of
// one rank that adds up N micro-batches.
#pragma once

#include <cstdint>

#include "base/stream.h"

namespace quern::kernels {

namespace cpu {
// out[i] = before[i] + parts[0][i] + parts[1][i] + ..., from left to right, for i < n. `before` may
// be null: the sum begins with the first part. Part p begins at parts + p * stride. out may be
// `before` or one of the parts. Unless `squares` is null, it receives the partial sums of the norm
// of `out`, with the bits of sum_squares(squares, out, n) (kernels/optimizer.h).
void rank_sum(float* out, void* squares, const float* before, const float* parts, int ranks,
              int64_t stride, int64_t n, Stream stream);
}  // namespace cpu

namespace cuda {
void rank_sum(float* out, void* squares, const float* before, const float* parts, int ranks,
              int64_t stride, int64_t n, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
