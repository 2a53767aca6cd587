#pragma once

#include "autograd/variable.h"

namespace quern {

// LayerNorm (Ba et al., 2016): w (x - mean) / sqrt(var + eps) + b over the last dimension of
// x (..., C). w and b (C) are f32 for f32 and bf16, f64 for f64.
Variable layer_norm(const Variable& x, const Variable& w, const Variable& b, double eps);

}  // namespace quern
