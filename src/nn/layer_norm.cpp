#include "nn/layer_norm.h"

#include "autograd/ops/layer_norm.h"

namespace quern {

LayerNorm::LayerNorm(int64_t width, double eps)
    : weight(Shape{width}, Init::constant(1.0)),
      bias(Shape{width}, Init::constant(0.0)),
      eps_(eps) {}

Variable LayerNorm::forward(const Variable& x) const {
  return layer_norm(x, weight.master(), bias.master(), eps_);
}

void LayerNorm::declare(ParameterList& list) {
  list.add("weight", weight);
  list.add("bias", bias);
}

}  // namespace quern
