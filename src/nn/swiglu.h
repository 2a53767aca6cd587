// The feed-forward part of a block: down(silu(gate(x)) * up(x)). gate and up are one projection.
#pragma once

#include "autograd/ops/swiglu.h"
#include "nn/linear.h"
#include "nn/model_config.h"

namespace quern {

class SwiGLU : public Layer {
 public:
  SwiGLU(int64_t width, int64_t hidden, const ModelOptions& options, const ModelInit& init);

  Variable forward(const Variable& x) const override;  // (..., C) -> (..., C)
  void declare(ParameterList& list) override;

 private:
  friend class DecodeStep;  // reads the weights
  KernelKind kernels_;
  SwigluOutput output_;
  Linear gate_up_;  // C -> 2 F
  Linear down_;     // F -> C
};

}  // namespace quern
