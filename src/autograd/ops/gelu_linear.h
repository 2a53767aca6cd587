#pragma once

#include "autograd/variable.h"

namespace quern {

// linear(gelu_tanh(x), w, b) as one op that keeps x alone: x (..., F), w (C, F), b (C) or
// undefined, result (..., C). The backward makes gelu_tanh's output, which w's gradient needs,
// again in the pass over memory that makes x's gradient. It has the bits of the two ops.
Variable gelu_linear(const Variable& x, const Variable& w, const Variable& b = {});

}  // namespace quern
