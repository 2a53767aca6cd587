// Finds where a NaN or infinity first appears.
#pragma once

#include <functional>
#include <string>

#include "optim/optimizer.h"

namespace quern {

bool all_finite(const Tensor& x);  // any float dtype; waits for the device

// The first NaN or infinity in the named slices of weights or moments, as "tensor 'moment1.a' holds
// nan at element 3"; empty when there is none. One pass on their device; searches for the element
// only when there is one.
std::string find_nonfinite(const OptimizerBuffer& buffer);

// Checks every weight, then runs `step` (the forward and backward of a non-finite step) and checks
// each op's output in order and each parameter's gradient as it becomes ready. Returns the first
// non-finite one, as "model.layers.3.mlp: output of swiglu" or "gradient of model.norm.weight";
// empty when there is none.
std::string find_nonfinite(ParameterArena& arena, const std::function<void()>& step);

}  // namespace quern
