#pragma once

#include "autograd/ops/cross_entropy.h"

namespace quern {

inline constexpr int64_t kLmHeadChunkRows = 1024;

// loss_scale times cross_entropy(linear(x, w), targets), without ever holding the logits: x (N...,
// C), w (V, C), targets (N...). One (chunk_rows, V) buffer of x's dtype is all that it needs.
//
// The forward also computes the gradients, chunk by chunk, so the logits are computed once; under
// NoGrad it computes the loss alone. When w is a parameter with a gradient buffer its gradient is
// added there in the forward. Then the op asks for three things: zero the gradients before the
// forward, run every loss backwards once, and use it in no other way than backward(loss); all else
// throws, as far as it can be seen. Without a buffer the loss is an ordinary Variable.
Variable lm_head_cross_entropy(const Variable& x, const Variable& w, const Tensor& targets,
                               int32_t ignore_index = kIgnoreIndex,
                               int64_t chunk_rows = kLmHeadChunkRows, double loss_scale = 1.0);

}  // namespace quern
