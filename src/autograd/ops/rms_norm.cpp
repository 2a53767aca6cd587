#include "autograd/ops/rms_norm.h"

#include "autograd/ops/norm.h"

namespace quern {

namespace {

constexpr const char* kRstd = "rms_norm rstd";
constexpr detail::NormNames kNorm{"rms_norm", "", "", kRstd};
constexpr detail::NormNames kAddNorm{"add_rms_norm", "add_rms_norm sum", "", kRstd};

}  // namespace

Variable rms_norm(const Variable& x, const Variable& w, double eps, std::optional<DType> out) {
  return detail::NormOp{kNorm, w, {}, eps}.of(x, out);
}

std::pair<Variable, Variable> add_rms_norm(const Variable& x, const Variable& y, const Variable& w,
                                           double eps) {
  return detail::NormOp{kAddNorm, w, {}, eps}.of_sum(x, y);
}

}  // namespace quern
