#include "nn/rms_norm.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/rms_norm.h"
#include "tensor/context.h"

namespace quern {

RMSNorm::RMSNorm(int64_t width, double eps, const ModelOptions& options, const char* name)
    : weight(Shape{width}, Init::constant(1.0)),
      name_(name),
      eps_(eps),
      kernels_(options.kernels),
      keep_output_(!options.rebuilds_norms()) {}

Variable RMSNorm::operator()(const Variable& x, DType out) const {
  const RangeScope range(RangeKind::module, name_);
  return norm(x, out);
}

Variable RMSNorm::norm(const Variable& x, DType out) const {
  if (kernels_ == KernelKind::fused) {
    const Variable y = rms_norm(x, weight.master(), eps_, out);
    return keep_output_ ? y.without_recipe() : y;
  }
  return cast(naive_rms_norm(x, weight.master(), eps_), out);
}

std::pair<Variable, Variable> RMSNorm::add_and_norm(const Variable& x,
                                                    const Variable& branch) const {
  const RangeScope range(RangeKind::module, name_);
  if (kernels_ == KernelKind::fused) {
    const auto [stream, y] = add_rms_norm(x, branch, weight.master(), eps_);
    return {stream, keep_output_ ? y.without_recipe() : y};
  }
  const Variable sum = add(x, cast(branch, x.dtype()));
  return {sum, norm(sum, branch.dtype())};
}

}  // namespace quern
