#pragma once

#include "autograd/variable.h"

namespace quern {

// (w x).sum(-1): x (..., C), w (C) of one dtype -> (...). Sums are taken in FP32 (FP64 for f64).
Variable weighted_sum(const Variable& x, const Variable& w);

}  // namespace quern
