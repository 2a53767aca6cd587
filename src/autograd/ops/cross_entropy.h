// Mean of -log softmax(logits)[target] over the targets that are not ignore_index; 0 without any.
// logits (N..., V), targets (N...) i32, or i64 or u16, converted to i32. The loss has shape ()
// and is f32 for f32 and bf16 logits, f64 for f64. A target outside [0, V) throws on the CPU and
// gives NaN on a GPU.
#pragma once

#include "autograd/variable.h"

namespace quern {

inline constexpr int32_t kIgnoreIndex = -100;

Variable cross_entropy(const Variable& logits, const Tensor& targets,
                       int32_t ignore_index = kIgnoreIndex);

// The same composed of small ops: log_softmax, gather, mask, sum. inverse_count: one element, by
// which the sum is multiplied; undefined: 1 / the number of targets that count.
Variable naive_cross_entropy(const Variable& logits, const Tensor& targets,
                             int32_t ignore_index = kIgnoreIndex, const Tensor& inverse_count = {});
// Mean of logsumexp(logits)^2 over the same rows: the z-loss of PaLM without its weight.
Variable naive_z_loss(const Variable& logits, const Tensor& targets,
                      int32_t ignore_index = kIgnoreIndex, const Tensor& inverse_count = {});

}  // namespace quern
