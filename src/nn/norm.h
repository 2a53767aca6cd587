// A norm over the last dimension with a learned scale (C), as the blocks of a model use it: RMSNorm
// or LayerNorm. Its parameters stay in FP32 under every precision.
#pragma once

#include <optional>
#include <utility>

#include "nn/module.h"

namespace quern {

class Norm : public Layer {
 public:
  // `name`: the name of the module range around each call; it must outlive the module. with_bias:
  // LayerNorm only.
  Norm(NormKind kind, int64_t width, double eps, const ModelOptions& options, const char* name,
       bool with_bias);

  // x (..., C) -> the same shape in type `out`.
  Variable operator()(const Variable& x, DType out) const;
  // The residual add in the same pass: {x + branch in x's type, norm of it in the branch's type}.
  std::pair<Variable, Variable> add_and_norm(const Variable& x, const Variable& branch) const;
  Variable forward(const Variable& x) const override { return norm(x, x.dtype()); }
  NormKind kind() const { return kind_; }
  void declare(ParameterList& list) override;

  Parameter weight;               // (C)
  std::optional<Parameter> bias;  // (C)

 private:
  Variable norm(const Variable& x, DType out) const;
  Variable shift() const { return bias ? bias->master() : no_bias_; }

  NormKind kind_;
  const char* name_;
  double eps_;
  KernelKind kernels_;
  bool keep_output_;
  Tensor no_bias_;  // zeros, of a LayerNorm without a bias; made with the arena
};

}  // namespace quern
