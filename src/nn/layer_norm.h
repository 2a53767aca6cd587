// LayerNorm with a learned scale and shift (C), kept in FP32 under every precision.
#pragma once

#include "nn/module.h"

namespace quern {

class LayerNorm : public Layer {
 public:
  explicit LayerNorm(int64_t width, double eps = 1e-5);

  Variable forward(const Variable& x) const override;  // (..., C) -> the same
  void declare(ParameterList& list) override;

  Parameter weight, bias;  // (C)

 private:
  double eps_;
};

}  // namespace quern
