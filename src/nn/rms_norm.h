// RMSNorm with a learned scale (C), kept in FP32 under every precision.
#pragma once

#include "nn/module.h"

namespace quern {

class RMSNorm : public Module {
 public:
  // `name` is that of the module range around each call, for observers; it outlives the module.
  RMSNorm(int64_t width, double eps, const ModelOptions& options, const char* name = "norm");

  // x (..., C) -> the same shape in `out`, the activations' type.
  Variable operator()(const Variable& x, DType out) const;
  // The residual add in the same pass: {x + branch in x's type, norm of it in the branch's type}.
  std::pair<Variable, Variable> add_and_norm(const Variable& x, const Variable& branch) const;
  void declare(ParameterList& list) override { list.add("weight", weight); }

  Parameter weight;  // (C)

 private:
  Variable norm(const Variable& x, DType out) const;

  const char* name_;
  double eps_;
  KernelKind kernels_;
  bool keep_output_;  // for the backward, rather than compute it again
};

}  // namespace quern
