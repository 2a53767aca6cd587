// The pointwise family: y = f(x), any shape; y has x's dtype. The functions and their derivatives
// are in kernels/common/pointwise_math.h.
#pragma once

#include "autograd/variable.h"

namespace quern {

Variable exp(const Variable& x);
Variable log(const Variable& x);
Variable tanh(const Variable& x);
Variable sigmoid(const Variable& x);  // 1 / (1 + exp(-x))
Variable relu(const Variable& x);
Variable silu(const Variable& x);       // x sigmoid(x)
Variable gelu_tanh(const Variable& x);  // Hendrycks and Gimpel's approximation by tanh
Variable gelu_erf(const Variable& x);   // x Phi(x)
Variable pow(const Variable& x, double exponent);
Variable sqrt(const Variable& x);
Variable scale(const Variable& x, double factor, double offset = 0.0);  // factor x + offset
Variable neg(const Variable& x);                                        // -x

}  // namespace quern
