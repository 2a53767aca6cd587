#include "nn/linear.h"

#include <cmath>

#include "autograd/ops/linear.h"

namespace quern {

Linear::Linear(int64_t in, int64_t out, Init init, bool with_bias)
    : Linear(in, out, init, std::vector<ParameterPart>{}, with_bias) {}

Linear::Linear(int64_t in, int64_t out, Init init, std::vector<ParameterPart> parts, bool with_bias,
               std::vector<ParameterPart> bias_parts)
    : weight(Shape{out, in}, init, std::move(parts)) {
  if (with_bias) bias.emplace(Shape{out}, Init::constant(0.0), std::move(bias_parts));
}

Linear::Linear(int64_t in, int64_t out, bool with_bias)
    : Linear(in, out, Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in))), with_bias) {}

Variable Linear::forward(const Variable& x) const {
  return bias ? linear(x, weight.weight(), bias->weight()) : linear(x, weight.weight());
}

void Linear::declare(ParameterList& list) {
  list.add("weight", weight);
  if (bias) list.add("bias", *bias);
}

}  // namespace quern
