// Activation checkpointing (Chen et al., 2016): runs a function without saving tensors for its
// backward, and runs it again when its gradient is needed. Costs one more forward; frees all
// activations between its inputs and outputs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "autograd/host_stash.h"
#include "autograd/tape.h"

namespace quern {

using CheckpointFn = std::function<std::vector<Variable>(const std::vector<Variable>&)>;

// fn must depend only on its arguments and on leaves (parameters), with the same result each time.
// Calls may nest. A leaf used by several checkpointed calls is reported ready after each of them.
// With a stash, the inputs wait for the backward in the host's memory.
std::vector<Variable> checkpoint(const CheckpointFn& fn, const std::vector<Variable>& inputs,
                                 const std::shared_ptr<HostStash>& stash = nullptr);
Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& x);

}  // namespace quern
