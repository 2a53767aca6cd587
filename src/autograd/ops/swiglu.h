#pragma once

#include "autograd/variable.h"

namespace quern {

// SwiGLU (Shazeer, 2020): silu(gate) up, gate and up the halves of each row of gate_up (..., 2F)
// -> (..., F). `output`, here and below: the result of this, where gate_up_linear gave it.
Variable swiglu(const Variable& gate_up);
Variable swiglu(const Variable& gate_up, const Tensor& output);

// linear(swiglu(gate_up), w) as one op: gate_up (..., 2 F), w (C, F), result (..., C). Nothing but
// gate_up is kept: the backward needs swiglu's output for w's gradient, and computes it in the same
// pass over memory in which it computes gate_up's gradient, or, where there is a kernel for it
// (kernels/swiglu_product.h), as a part of the product that makes its output's gradient.
Variable swiglu_linear(const Variable& gate_up, const Variable& w);
Variable swiglu_linear(const Variable& gate_up, const Variable& w, const Tensor& output);

// linear(x, w) for the two above: x (..., C), w (2 F, C), result (..., 2 F). Where there is a
// kernel for it the product gives SwiGLU's output too, (..., F); elsewhere that is undefined.
struct GateUpResult {
  Variable gate_up;
  Tensor output;
};
GateUpResult gate_up_linear(const Variable& x, const Variable& w);

}  // namespace quern
