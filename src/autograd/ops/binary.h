// The binary family: elementwise ops of two arguments, with NumPy's broadcasting. Both arguments
// have one floating dtype and one device. Gradients are summed back over broadcast dimensions.
#pragma once

#include "autograd/variable.h"

namespace quern {

Variable add(const Variable& a, const Variable& b);  // a + b
Variable sub(const Variable& a, const Variable& b);  // a - b
Variable mul(const Variable& a, const Variable& b);  // a b
Variable div(const Variable& a, const Variable& b);  // a / b

}  // namespace quern
