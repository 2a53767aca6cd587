#pragma once

#include "autograd/variable.h"

namespace quern {

// SwiGLU (Shazeer, 2020): silu(gate) up, gate and up the halves of each row of gate_up (..., 2F)
// -> (..., F).
Variable swiglu(const Variable& gate_up);

}  // namespace quern
