// The product of split operands.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/stream.h"
#include "kernels/gemm_algorithms.h"
#include "kernels/cuda/gemm/gemm_split.h"

namespace quern::kernels::cuda {

// Destination of a product's sums: d = alpha sum + beta d. Every part of K has its own matrices.
struct SplitOutput {
  float* d;
  int64_t ld, matrix_stride, part_stride;
  float alpha, beta;  // beta 0 does not read d
};

// p has the sizes, transposes, batch and repeated operands; a and b are planes of A and B from
// split_planes, of one matrix where an operand repeats.
void split_product(const SplitOutput& out, const bfloat16* a, const bfloat16* b,
                   const GemmProblem& p, const SplitPlan& plan, Stream stream);

}  // namespace quern::kernels::cuda
