#include "nn/rms_norm.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/rms_norm.h"

namespace quern {

RMSNorm::RMSNorm(int64_t width, double eps, KernelKind kernels)
    : weight(Shape{width}, Init::constant(1.0)), eps_(eps), kernels_(kernels) {}

Variable RMSNorm::operator()(const Variable& x, DType out) const {
  if (kernels_ == KernelKind::fused) return rms_norm(x, weight.master(), eps_, out);
  return cast(naive_rms_norm(x, weight.master(), eps_), out);
}

std::pair<Variable, Variable> RMSNorm::add_and_norm(const Variable& x,
                                                    const Variable& branch) const {
  if (kernels_ == KernelKind::fused) return add_rms_norm(x, branch, weight.master(), eps_);
  const Variable sum = add(x, cast(branch, x.dtype()));
  return {sum, (*this)(sum, branch.dtype())};
}

}  // namespace quern
