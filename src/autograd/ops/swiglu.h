#pragma once

#include <memory>

#include "autograd/host_stash.h"
#include "autograd/ops/linear.h"
#include "autograd/variable.h"

namespace quern {

// SwiGLU (Shazeer, 2020): silu(gate) up, gate and up the halves of each row of gate_up (..., 2F)
// -> (..., F).
Variable swiglu(const Variable& gate_up);

// linear(swiglu(gate_up), w) as one op: gate_up (..., 2 F), w (C, F), result (..., C). `made` is
// swiglu's output if gate_up_linear returned it. The backward makes gate_up's gradient, and
// swiglu's output unless kept, in one pass over memory. A fused kernel, where available
// (kernels/swiglu_product.h), does that within the matrix product. With a stash, gate_up waits for
// the backward in the host's memory.
Variable swiglu_linear(const Variable& gate_up, const Variable& w, const Tensor& made = {},
                       ActivationOutput output = ActivationOutput::rebuilt,
                       const std::shared_ptr<HostStash>& stash = nullptr);

// linear(x, w) for swiglu_linear: x (..., C), w (2 F, C), result (..., 2 F). A fused kernel, where
// available, also returns SwiGLU's output (..., F); otherwise that is undefined.
struct GateUpResult {
  Variable gate_up;
  Tensor output;
};
GateUpResult gate_up_linear(const Variable& x, const Variable& w);

}  // namespace quern
