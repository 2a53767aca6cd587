// The naive twins of fused ops, composed of small differentiable ops: what the fused ones are
// tested and benchmarked against (naive_attention and naive_cross_entropy lie beside theirs).
// Arguments, shapes and dtypes as the fused op's; norms and rotations compute in FP32 under bf16.
#pragma once

#include <optional>
#include <utility>

#include "autograd/ops/rope.h"
#include "autograd/variable.h"

namespace quern {

Variable naive_rms_norm(const Variable& x, const Variable& w, double eps,
                        std::optional<DType> out = {});
std::pair<Variable, Variable> naive_add_rms_norm(const Variable& x, const Variable& y,
                                                 const Variable& w, double eps);
Variable naive_layer_norm(const Variable& x, const Variable& w, const Variable& b, double eps,
                          std::optional<DType> out = {});
std::pair<Variable, Variable> naive_add_layer_norm(const Variable& x, const Variable& y,
                                                   const Variable& w, const Variable& b,
                                                   double eps);
Variable naive_rope(const Variable& x, const RopeTable& table, const Tensor& positions = {},
                    int64_t first = 0);
Variable naive_swiglu(const Variable& gate_up);

}  // namespace quern
