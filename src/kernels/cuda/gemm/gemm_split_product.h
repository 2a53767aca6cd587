// The product of split operands.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "base/stream.h"
#include "kernels/cuda/gemm/gemm_algorithms.h"
#include "kernels/cuda/gemm/gemm_split.h"

namespace quern::kernels::cuda {

// Where a product's sums go: d = alpha sum + beta d. Every part of K has its own matrices.
struct SplitOutput {
  float* d;
  int64_t ld, matrix_stride, part_stride;
  float alpha, beta;  // beta 0 does not read d
};

// The sizes, transposes, batch and which operands repeat are p's; a and b are planes of A and B as
// split_planes leaves them, of one matrix where an operand repeats.
void split_product(const SplitOutput& out, const bfloat16* a, const bfloat16* b,
                   const GemmProblem& p, const SplitPlan& plan, Stream stream);

}  // namespace quern::kernels::cuda
