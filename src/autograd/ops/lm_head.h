#pragma once

#include "autograd/ops/cross_entropy.h"

namespace quern {

inline constexpr int64_t kLmHeadChunkRows = 1024;

// cross_entropy(linear(x, w), targets) without ever holding the logits: x (N..., C), w (V, C),
// targets (N...). Forward and backward compute the logits of chunk_rows rows at a time, so one
// (chunk_rows, V) buffer of x's dtype is all they need; the backward computes them again.
Variable lm_head_cross_entropy(const Variable& x, const Variable& w, const Tensor& targets,
                               int32_t ignore_index = kIgnoreIndex,
                               int64_t chunk_rows = kLmHeadChunkRows);

}  // namespace quern
