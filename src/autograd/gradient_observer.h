// An OutputObserver that is told of gradients too: attached as one, it sees the backward as well.
#pragma once

#include <cstdint>

#include "tensor/context.h"

namespace quern {

class GradientObserver : public OutputObserver {
 public:
  // The gradient of an output that on_output showed, before the op's backward runs. `order` is what
  // Context::next_node was when the op was shown; the op has `outputs` outputs, and this is the
  // gradient of the one at `output`.
  virtual void on_gradient(uint64_t order, int output, int outputs, const Tensor& grad) = 0;
};

}  // namespace quern
