#pragma once

#include "autograd/variable.h"

namespace quern {

// x w^T: x (..., in), w (out, in) -> (..., out). All of one dtype.
Variable linear(const Variable& x, const Variable& w);
// x w^T + b: b (out). The sum is rounded to x's type twice, before and after b is added.
Variable linear(const Variable& x, const Variable& w, const Variable& b);

}  // namespace quern
