// Activations as layers, for Sequential.
#pragma once

#include "autograd/ops/pointwise.h"
#include "nn/module.h"

namespace quern {

// A layer without parameters, from a pointwise op.
template <Variable (*op)(const Variable&)>
class Activation : public Layer {
 public:
  Variable forward(const Variable& x) const override { return op(x); }
  void declare(ParameterList&) override {}
};

using ReLU = Activation<relu>;
using SiLU = Activation<silu>;
using GELU = Activation<gelu_erf>;
using GELUTanh = Activation<gelu_tanh>;
using Tanh = Activation<tanh>;
using Sigmoid = Activation<sigmoid>;

}  // namespace quern
