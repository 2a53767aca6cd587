// Matrix products of tensors with any strides: what matmul, linear and lm_head are made of.
#pragma once

#include "tensor/tensor.h"

namespace quern::detail {

// d = op(a) op(b), or d += op(a) op(b) when `add`; op transposes the last two dimensions where
// asked for. d is contiguous, (..., M, N); a and b have d's leading dimensions or are 2-D. When d
// is 2-D and an operand is not, the products of the whole batch are summed. d has the operands'
// dtype, or is f32 for bf16 operands. An operand whose matrices are not rows or columns at one even
// distance is copied first. bias (N), where defined, is added to each row: of d's dtype, with a 2-D
// d and without `add`.
void matrix_product(const Tensor& d, const Tensor& a, bool transpose_a, const Tensor& b,
                    bool transpose_b, bool add = false, const Tensor& bias = {});

// x, or a contiguous copy where matrix_product would make one: for an op that needs it again.
Tensor product_operand(const Tensor& x);

}  // namespace quern::detail
