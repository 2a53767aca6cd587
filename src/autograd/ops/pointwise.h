// The pointwise family: y = f(x), any shape; y has x's dtype. The functions and their derivatives
// are in kernels/common/pointwise_math.h.
#pragma once

#include "autograd/variable.h"
#include "kernels/common/pointwise_math.h"

namespace quern {

namespace detail {
Variable pointwise(const char* op, const Variable& x, const kernels::PointwiseOp& f);
}  // namespace detail

// exp(x), log(x), tanh(x) and the others of QUERN_POINTWISE_OPS, whose functors have the formulas.
#define QUERN_DEFINE_OP(name, Functor)                      \
  inline Variable name(const Variable& x) {                 \
    return detail::pointwise(#name, x, kernels::Functor{}); \
  }
QUERN_POINTWISE_OPS(QUERN_DEFINE_OP)
#undef QUERN_DEFINE_OP

inline Variable pow(const Variable& x, double exponent) {
  return detail::pointwise("pow", x, kernels::Pow{exponent});
}
inline Variable scale(const Variable& x, double factor, double offset = 0.0) {  // factor x + offset
  return detail::pointwise("scale", x, kernels::Scale{factor, offset});
}
inline Variable neg(const Variable& x) {  // -x
  return detail::pointwise("neg", x, kernels::Scale{-1.0, 0.0});
}

}  // namespace quern
