#include "nn/swiglu.h"

#include "autograd/ops/naive.h"
#include "tensor/context.h"

namespace quern {

SwiGLU::SwiGLU(int64_t width, int64_t hidden, const ModelOptions& options, const ModelInit& init)
    : kernels_(options.kernels),
      output_(options.rebuilds_swiglu() ? SwigluOutput::rebuilt : SwigluOutput::kept),
      gate_up_(width, 2 * hidden, init.projection(width, hidden),
               {{"gate_proj.weight", 0, hidden}, {"up_proj.weight", hidden, hidden}}),
      down_(hidden, width, init.residual(hidden, width)) {}

Variable SwiGLU::forward(const Variable& x) const {
  const RangeScope range(RangeKind::module, "mlp");
  if (kernels_ == KernelKind::naive) {
    return down_("down_proj", naive_swiglu(gate_up_("gate_up_proj", x)));
  }
  const GateUpResult made = [&] {
    const RangeScope up(RangeKind::module, "gate_up_proj");
    return gate_up_linear(x, gate_up_.weight.weight());
  }();
  const RangeScope down(RangeKind::module, "down_proj");
  return swiglu_linear(made.gate_up, down_.weight.weight(), made.output, output_);
}

void SwiGLU::declare(ParameterList& list) {
  list.add("gate_up_proj.weight", gate_up_.weight);
  list.add("down_proj.weight", down_.weight);
}

}  // namespace quern
