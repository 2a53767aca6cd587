#pragma once

#include "autograd/ops/cross_entropy.h"

namespace quern {

inline constexpr int64_t kLmHeadChunkRows = 1024;

struct LmHeadOptions {
  int32_t ignore_index = kIgnoreIndex;
  int64_t chunk_rows = kLmHeadChunkRows;
  double scale = 1.0;
  double z_loss = 0.0;  // PaLM's term: plus z_loss times the mean of logsumexp(logits)^2
  // One element: means are sums times this. Undefined: 1 / the number of targets that count.
  Tensor inverse_count = {};
};

struct LmHeadResult {
  Variable loss;
  // The loss's terms, scaled alike. z_loss is undefined without a z-loss.
  Tensor cross_entropy, z_loss;
};

// scale times (cross_entropy(linear(x, w), targets) plus the z-loss), without storing all logits.
// x (N..., C), w (V, C), targets (N...). One buffer of x's dtype holds the logits of each chunk in
// turn: (chunk_rows, V). On a GPU, a V that is no multiple of 16 bytes is rounded up; the products
// then read a copy of w padded with rows of zeros.
//
// The forward also computes the gradients, chunk by chunk, so the logits are computed once; under
// NoGrad it computes only the loss. When w is a parameter with a gradient buffer, the forward adds
// its gradient there. Then three rules hold: zero the gradients before the forward, run every loss
// backwards once, and use it only for backward(loss) or in a sum with other losses. Misuse throws,
// at the latest in the optimizer's step. Without a buffer the loss is an ordinary Variable.
LmHeadResult lm_head_loss(const Variable& x, const Variable& w, const Tensor& targets,
                          const LmHeadOptions& options = {});

// lm_head_loss without a z-loss; returns only the loss.
Variable lm_head_cross_entropy(const Variable& x, const Variable& w, const Tensor& targets,
                               int32_t ignore_index = kIgnoreIndex,
                               int64_t chunk_rows = kLmHeadChunkRows, double loss_scale = 1.0);

}  // namespace quern
