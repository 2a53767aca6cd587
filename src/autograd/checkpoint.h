// Activation checkpointing (Chen et al., 2016): run a function without saving anything for its
// backward, and run it again when its gradient is needed. Costs one more forward, saves everything
// between its inputs and its outputs.
#pragma once

#include <functional>
#include <vector>

#include "autograd/tape.h"

namespace quern {

using CheckpointFn = std::function<std::vector<Variable>(const std::vector<Variable>&)>;

// fn must depend on its arguments and on leaves (parameters) alone, and compute the same each time.
// Nests. A leaf used by several checkpointed calls is reported ready after each of them.
std::vector<Variable> checkpoint(const CheckpointFn& fn, const std::vector<Variable>& inputs);
Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& x);

}  // namespace quern
