// What rms_norm and layer_norm share. b is undefined for RMSNorm, which has neither a bias nor a
// mean.
#pragma once

#include <optional>
#include <utility>

#include "autograd/variable.h"

namespace quern::detail {

// In errors and for observers: of the op, and of the tensors it makes beside its output.
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
