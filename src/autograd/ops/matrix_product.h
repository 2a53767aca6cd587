// Matrix products of tensors with any strides, for matmul, linear and lm_head.
#pragma once

#include "kernels/gemm.h"
#include "tensor/tensor.h"

namespace quern::detail {

// d = op(a) op(b), or d += op(a) op(b) when `add`; op transposes the last two dimensions if asked.
// d is contiguous, (..., M, N), or, without a bias, 2-D with space between its rows; a and b have
// d's leading dimensions or are 2-D. When d is 2-D and an operand is not, the products of the whole
// batch are summed, in FP32 or FP64. d has the operands' dtype, or is f32 for bf16 operands. An
// operand is copied first if its matrices have neither contiguous rows nor contiguous columns, or
// no fixed stride between them. bias (N), if defined, is added to each row; it has d's dtype and
// needs a 2-D d without `add`.
void matrix_product(const Tensor& d, const Tensor& a, bool transpose_a, const Tensor& b,
                    bool transpose_b, bool add = false, const Tensor& bias = {});

// The current Context's resources for one product, and its scratch memory if it needs any.
struct ProductResources {
  kernels::GemmResources gemm;
  Tensor scratch;
};
ProductResources product_resources(int64_t scratch_bytes, Device device);

void add_bias(const Tensor& y, const Tensor& b);  // y (M, N) += b (N), in place

// x, or a contiguous copy if matrix_product would make one: for an op that needs it again.
Tensor product_operand(const Tensor& x);

}  // namespace quern::detail
