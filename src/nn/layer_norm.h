// LayerNorm with a learned scale and shift (C); its output is kept for the backward.
#pragma once

#include "nn/norm.h"

namespace quern {

class LayerNorm : public Norm {
 public:
  explicit LayerNorm(int64_t width, double eps = 1e-5)
      : Norm(NormKind::layer, width, eps, keep_output(), "norm", true) {}

 private:
  static ModelOptions keep_output() {
    ModelOptions options;
    options.recompute = Recompute::none;
    return options;
  }
};

}  // namespace quern
