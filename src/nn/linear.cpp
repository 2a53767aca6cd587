#include "nn/linear.h"

#include <cmath>

#include "autograd/ops/binary.h"
#include "autograd/ops/linear.h"

namespace quern {

Linear::Linear(int64_t in, int64_t out, Init init, bool with_bias)
    : Linear(in, out, init, std::vector<ParameterPart>{}) {
  if (with_bias) bias.emplace(Shape{out}, Init::constant(0.0));
}

Linear::Linear(int64_t in, int64_t out, Init init, std::vector<ParameterPart> parts)
    : weight(Shape{out, in}, init, std::move(parts)) {}

Linear::Linear(int64_t in, int64_t out, bool with_bias)
    : Linear(in, out, Init::normal(1.0 / std::sqrt(3.0 * static_cast<double>(in))), with_bias) {}

Variable Linear::forward(const Variable& x) const {
  const Variable y = linear(x, weight.weight());
  return bias ? add(y, bias->weight()) : y;
}

void Linear::declare(ParameterList& list) {
  list.add("weight", weight);
  if (bias) list.add("bias", *bias);
}

}  // namespace quern
