// LayerNorm (Ba et al., 2016): w (x - mean) / sqrt(var + eps) + b over the last dimension C. w and
// b (C) and the statistics are f32 for f32 and bf16, f64 for f64.
#pragma once

#include <optional>
#include <utility>

#include "autograd/variable.h"

namespace quern {

// x (..., C) -> (..., C) of dtype `out`: x's, or bf16 for an f32 x (the residual stream).
Variable layer_norm(const Variable& x, const Variable& w, const Variable& b, double eps,
                    std::optional<DType> out = {});

// {sum, normed}: sum = x + y, in x's dtype; normed = layer_norm(sum), in y's. See add_rms_norm.
std::pair<Variable, Variable> add_layer_norm(const Variable& x, const Variable& y,
                                             const Variable& w, const Variable& b, double eps);

}  // namespace quern
