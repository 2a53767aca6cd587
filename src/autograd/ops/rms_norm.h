// RMSNorm (Zhang and Sennrich, 2019, equation 4): w x / sqrt(mean(x^2) + eps) over the last
// dimension C. w (C) and the statistics are f32 for f32 and bf16, f64 for f64.
#pragma once

#include <optional>
#include <utility>

#include "autograd/variable.h"

namespace quern {

// x (..., C) -> (..., C) of dtype `out`: x's, or bf16 for an f32 x (the residual stream).
Variable rms_norm(const Variable& x, const Variable& w, double eps, std::optional<DType> out = {});

// {sum, normed}: sum = x + y, in x's dtype; normed = rms_norm(sum), in y's. x (..., C) is the
// residual stream, y (..., C) a sublayer's output. One kernel in each direction.
std::pair<Variable, Variable> add_rms_norm(const Variable& x, const Variable& y, const Variable& w,
                                           double eps);

}  // namespace quern
