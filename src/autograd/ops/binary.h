// The binary family: elementwise ops of two arguments, with NumPy's broadcasting. Both arguments
// have one floating dtype and one device. Gradients are summed back over broadcast dimensions.
#pragma once

#include "autograd/variable.h"
#include "kernels/common/binary_math.h"

namespace quern {

namespace detail {
Variable binary(const char* op, const Variable& a, const Variable& b, const kernels::BinaryOp& f);
}  // namespace detail

inline Variable add(const Variable& a, const Variable& b) {
  return detail::binary("add", a, b, kernels::Add{});
}
inline Variable sub(const Variable& a, const Variable& b) {
  return detail::binary("sub", a, b, kernels::Sub{});
}
inline Variable mul(const Variable& a, const Variable& b) {
  return detail::binary("mul", a, b, kernels::Mul{});
}
inline Variable div(const Variable& a, const Variable& b) {
  return detail::binary("div", a, b, kernels::Div{});
}

}  // namespace quern
