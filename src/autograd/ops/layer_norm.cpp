#include "autograd/ops/layer_norm.h"

#include "autograd/ops/norm.h"

namespace quern {

namespace {

constexpr const char *kMean = "layer_norm mean", *kRstd = "layer_norm rstd";
constexpr detail::NormNames kNorm{"layer_norm", "", kMean, kRstd};
constexpr detail::NormNames kAddNorm{"add_layer_norm", "add_layer_norm sum", kMean, kRstd};

}  // namespace

Variable layer_norm(const Variable& x, const Variable& w, const Variable& b, double eps,
                    std::optional<DType> out) {
  return detail::NormOp{kNorm, w, b, eps}.of(x, out);
}

std::pair<Variable, Variable> add_layer_norm(const Variable& x, const Variable& y,
                                             const Variable& w, const Variable& b, double eps) {
  return detail::NormOp{kAddNorm, w, b, eps}.of_sum(x, y);
}

}  // namespace quern
