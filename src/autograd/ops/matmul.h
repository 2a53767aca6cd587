#pragma once

#include "autograd/variable.h"

namespace quern {

// op(a) op(b), where op transposes the last two dimensions if asked. With op(a) (..., M, K) and
// op(b) (..., K, N) the result is (..., M, N). Leading dimensions are equal, or one operand is 2-D
// and serves every matrix of the other. Operands share dtype and device; any strides. Products are
// accumulated in FP32 (FP64 for f64), under the Context's precision.
Variable matmul(const Variable& a, const Variable& b, bool transpose_a = false,
                bool transpose_b = false);

}  // namespace quern
