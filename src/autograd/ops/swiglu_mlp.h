#pragma once

#include <memory>

#include "autograd/host_stash.h"
#include "autograd/ops/linear.h"
#include "autograd/variable.h"

namespace quern {

// linear(swiglu(linear(x, w_up)), w_down): x (..., C), w_up (2 F, C), w_down (N, F), result
// (..., N). When linear() multiplies in FP8 (Fp8Products in autograd/ops/fp8.h), N must be C and it
// is one op: SwiGLU's output and its input's gradient are quantized as they are computed and exist
// only in FP8. With a stash, this op keeps SwiGLU's input in host memory until the backward.
Variable swiglu_mlp(const Variable& x, const Variable& w_up, const Variable& w_down,
                    ActivationOutput output = ActivationOutput::rebuilt,
                    const std::shared_ptr<HostStash>& stash = nullptr);

}  // namespace quern
