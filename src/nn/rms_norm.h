// RMSNorm with a learned scale (C).
#pragma once

#include "nn/norm.h"

namespace quern {

class RMSNorm : public Norm {
 public:
  RMSNorm(int64_t width, double eps, const ModelOptions& options, const char* name = "norm")
      : Norm(NormKind::rms, width, eps, options, name, false) {}
};

}  // namespace quern
