#pragma once

#include "autograd/variable.h"

namespace quern {

// SwiGLU (Shazeer, 2020): silu(gate) up, gate and up the halves of each row of gate_up (..., 2F)
// -> (..., F).
Variable swiglu(const Variable& gate_up);

// What becomes of swiglu's output after a forward, which w's gradient needs.
enum class SwigluOutput { rebuilt, kept };

// linear(swiglu(gate_up), w) as one op: gate_up (..., 2 F), w (C, F), result (..., C). made:
// swiglu's output, where gate_up_linear gave it. The backward computes gate_up's gradient, and
// swiglu's output unless it is kept, in one pass over memory, or, where there is a kernel for it
// (kernels/swiglu_product.h), as a part of the product that makes that output's gradient.
Variable swiglu_linear(const Variable& gate_up, const Variable& w, const Tensor& made = {},
                       SwigluOutput output = SwigluOutput::rebuilt);

// linear(x, w) for swiglu_linear: x (..., C), w (2 F, C), result (..., 2 F). Where there is a
// kernel for it the product gives SwiGLU's output too, (..., F); elsewhere that is undefined.
struct GateUpResult {
  Variable gate_up;
  Tensor output;
};
GateUpResult gate_up_linear(const Variable& x, const Variable& w);

}  // namespace quern
