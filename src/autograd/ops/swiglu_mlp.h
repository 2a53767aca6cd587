#pragma once

#include <memory>

#include "autograd/host_stash.h"
#include "autograd/ops/linear.h"
#include "autograd/variable.h"

namespace quern {

// linear(swiglu(linear(x, w_up)), w_down): x (..., C), w_up (2 F, C), w_down (C, F), result
// (..., C). Where linear() multiplies in FP8 (Fp8Products in autograd/ops/fp8.h) it is one op, in
// which SwiGLU's output and the gradient of its input are quantized where they are computed and
// exist in FP8 alone. There, with a stash, SwiGLU's input waits for the backward in the host's
// memory.
Variable swiglu_mlp(const Variable& x, const Variable& w_up, const Variable& w_down,
                    ActivationOutput output = ActivationOutput::rebuilt,
                    const std::shared_ptr<HostStash>& stash = nullptr);

}  // namespace quern
