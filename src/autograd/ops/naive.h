// The naive twins of fused ops, composed of small differentiable ops: references for tests and
// benchmarks (naive_attention and naive_cross_entropy are beside their fused ops). Arguments,
// shapes and dtypes are those of the fused op; norms and rotations compute in FP32 under bf16.
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
