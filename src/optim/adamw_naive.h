// AdamW's update by small ops, one after another: the naive twin of kernels::adamw.
#pragma once

#include <span>

#include "optim/adamw.h"

namespace quern {

// FP32, one dimension, all of one length, on one device.
struct AdamWTensors {
  Tensor param, m, v, grad;
};

// The twin of kernels::adamw (its header has the formula), with the clip factor and the bias
// corrections multiplied into the host's scalars. `state` gives lr and t, the number of this update
// from 1 on; only beta1, beta2 and eps of `options` are used.
void naive_adamw(const AdamWTensors& tensors, std::span<const kernels::AdamWRange> ranges,
                 const AdamWOptions& options, double clip, const kernels::StepState& state);

}  // namespace quern
