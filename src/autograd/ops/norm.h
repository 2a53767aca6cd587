// Shared by rms_norm and layer_norm. b is undefined for RMSNorm, which has no bias and no mean.
#pragma once

#include <optional>
#include <utility>

#include "autograd/variable.h"

namespace quern::detail {

// Names for errors and observers: of the op, and of the tensors that it makes besides its output.
struct NormNames {
  const char *op, *sum, *mean, *rstd;
};

struct NormOp {
  NormNames names;
  Variable w, b;
  double eps;

  Variable of(const Variable& x, std::optional<DType> out) const;
  std::pair<Variable, Variable> of_sum(const Variable& x, const Variable& y) const;
};

}  // namespace quern::detail
