#include "nn/swiglu.h"

#include "autograd/ops/naive.h"
#include "autograd/ops/swiglu.h"
#include "tensor/context.h"

namespace quern {

SwiGLU::SwiGLU(int64_t width, int64_t hidden, KernelKind kernels, const ModelInit& init)
    : kernels_(kernels),
      gate_up_(width, 2 * hidden, init.projection(width, hidden),
               {{"gate_proj.weight", 0, hidden}, {"up_proj.weight", hidden, hidden}}),
      down_(hidden, width, init.residual(hidden, width)) {}

Variable SwiGLU::forward(const Variable& x) const {
  const RangeScope range("mlp");
  const Variable gate_up = gate_up_(x);
  return down_(kernels_ == KernelKind::fused ? swiglu(gate_up) : naive_swiglu(gate_up));
}

void SwiGLU::declare(ParameterList& list) {
  list.add("gate_up_proj.weight", gate_up_.weight);
  list.add("down_proj.weight", down_.weight);
}

}  // namespace quern
