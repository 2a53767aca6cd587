// The pointwise family: y = f(x), any shape; y has x's dtype. The functions and their derivatives
// are in kernels/common/pointwise_math.h.
#pragma once

#include "autograd/variable.h"
#include "kernels/common/pointwise_math.h"

namespace quern {

namespace detail {
Variable pointwise(const char* op, const Variable& x, const kernels::PointwiseOp& f);
}  // namespace detail

inline Variable exp(const Variable& x) {
  return detail::pointwise("exp", x, kernels::Exp{});
}
inline Variable log(const Variable& x) {
  return detail::pointwise("log", x, kernels::Log{});
}
inline Variable tanh(const Variable& x) {
  return detail::pointwise("tanh", x, kernels::Tanh{});
}
inline Variable sigmoid(const Variable& x) {  // 1 / (1 + exp(-x))
  return detail::pointwise("sigmoid", x, kernels::Sigmoid{});
}
inline Variable relu(const Variable& x) {
  return detail::pointwise("relu", x, kernels::Relu{});
}
inline Variable silu(const Variable& x) {  // x sigmoid(x)
  return detail::pointwise("silu", x, kernels::Silu{});
}
inline Variable gelu_tanh(const Variable& x) {  // Hendrycks and Gimpel's approximation by tanh
  return detail::pointwise("gelu_tanh", x, kernels::GeluTanh{});
}
inline Variable gelu_erf(const Variable& x) {  // x Phi(x)
  return detail::pointwise("gelu_erf", x, kernels::GeluErf{});
}
inline Variable pow(const Variable& x, double exponent) {
  return detail::pointwise("pow", x, kernels::Pow{exponent});
}
inline Variable sqrt(const Variable& x) {
  return detail::pointwise("sqrt", x, kernels::Sqrt{});
}
inline Variable scale(const Variable& x, double factor, double offset = 0.0) {  // factor x + offset
  return detail::pointwise("scale", x, kernels::Scale{factor, offset});
}
inline Variable neg(const Variable& x) {  // -x
  return detail::pointwise("neg", x, kernels::Scale{-1.0, 0.0});
}

}  // namespace quern
