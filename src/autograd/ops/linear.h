#pragma once

#include "autograd/variable.h"

namespace quern {

// x w^T: x (..., in), w (out, in) -> (..., out). All of one dtype.
Variable linear(const Variable& x, const Variable& w);
// x w^T + b: b (out).
Variable linear(const Variable& x, const Variable& w, const Variable& b);

}  // namespace quern
