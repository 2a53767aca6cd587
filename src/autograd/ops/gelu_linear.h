#pragma once

#include <memory>

#include "autograd/host_stash.h"
#include "autograd/ops/linear.h"
#include "autograd/variable.h"

namespace quern {

// linear(gelu_tanh(x + x_bias), w, b) as one op: x (..., F), x_bias (F), w (C, F), b (C), result
// (..., C). Both biases may be undefined. The backward makes x's and x_bias's gradients, and
// gelu_tanh's output unless kept, in one pass over memory. With a stash, x waits for the backward
// in the host's memory.
Variable gelu_linear(const Variable& x, const Variable& x_bias, const Variable& w,
                     const Variable& b, ActivationOutput output = ActivationOutput::rebuilt,
                     const std::shared_ptr<HostStash>& stash = nullptr);

}  // namespace quern
