// Dropout of a module's output, in training only.
#pragma once

#include <cstdint>

#include "autograd/ops/dropout.h"
#include "nn/options.h"

namespace quern {

// Dropout for one forward and its backward. `site` plus `place` identifies a place in the model.
struct Dropout {
  double p = 0.0;
  KernelKind kernels = KernelKind::fused;
  Tensor draw = {};  // undefined: nothing is dropped, as in evaluation and generation
  uint32_t site = 0;

  Variable operator()(const Variable& x, uint32_t place = 0) const {
    if (!draw.defined()) return x;
    const auto op = kernels == KernelKind::fused ? dropout : naive_dropout;
    return op(x, p, draw, site + place);
  }
};

}  // namespace quern
