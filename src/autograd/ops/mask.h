#pragma once

#include <limits>

#include "autograd/variable.h"

namespace quern {

// `value` where mask (bool or u8, broadcast to x's shape) is not 0, else x.
Variable masked_fill(const Variable& x, const Tensor& mask, double value);

// x (..., Tq, Tk): keeps x[..., i, j] where j <= i + Tk - Tq (the last query sees every key), and
// puts `value` elsewhere.
Variable causal_mask(const Variable& x, double value = -std::numeric_limits<double>::infinity());

}  // namespace quern
