#pragma once

#include "autograd/variable.h"

namespace quern {

// SwiGLU (Shazeer, 2020): silu(gate) up, gate and up the halves of each row of gate_up (..., 2F)
// -> (..., F).
Variable swiglu(const Variable& gate_up);

// linear(swiglu(gate_up), w) as one op: gate_up (..., 2 F), w (C, F), result (..., C). Nothing but
// gate_up is kept: the backward needs swiglu's output for w's gradient, and computes it in the same
// pass over memory in which it computes gate_up's gradient.
Variable swiglu_linear(const Variable& gate_up, const Variable& w);

}  // namespace quern
