#include "nn/norm.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/rms_norm.h"
#include "tensor/context.h"
#include "tensor/factory.h"

namespace quern {

Norm::Norm(NormKind kind, int64_t width, double eps, const ModelOptions& options, const char* name,
           bool with_bias)
    : weight(Shape{width}, Init::constant(1.0)),
      kind_(kind),
      name_(name),
      eps_(eps),
      kernels_(options.kernels),
      keep_output_(!options.rebuilds_norms()) {
  weight.fp32 = true;
  if (kind == NormKind::rms || !with_bias) return;
  bias.emplace(Shape{width}, Init::constant(0.0));
  bias->fp32 = true;
}

void Norm::declare(ParameterList& list) {
  list.add("weight", weight);
  if (bias) list.add("bias", *bias);
  const bool shifts = kind_ == NormKind::layer && !bias;
  if (shifts) list.add_constant([this] { no_bias_ = zeros(weight.shape()); });
}

Variable Norm::operator()(const Variable& x, DType out) const {
  const RangeScope range(RangeKind::module, name_);
  return norm(x, out);
}

Variable Norm::norm(const Variable& x, DType out) const {
  const bool rms = kind_ == NormKind::rms;
  const Variable& w = weight.master();
  if (kernels_ == KernelKind::fused) {
    const Variable y = rms ? rms_norm(x, w, eps_, out) : layer_norm(x, w, shift(), eps_, out);
    return keep_output_ ? y.without_recipe() : y;
  }
  return cast(rms ? naive_rms_norm(x, w, eps_) : naive_layer_norm(x, w, shift(), eps_), out);
}

std::pair<Variable, Variable> Norm::add_and_norm(const Variable& x, const Variable& branch) const {
  const RangeScope range(RangeKind::module, name_);
  if (kernels_ == KernelKind::fused) {
    const Variable& w = weight.master();
    const auto [stream, y] = kind_ == NormKind::rms ? add_rms_norm(x, branch, w, eps_)
                                                    : add_layer_norm(x, branch, w, shift(), eps_);
    return {stream, keep_output_ ? y.without_recipe() : y};
  }
  const Variable sum = add(x, cast(branch, x.dtype()));
  return {sum, norm(sum, branch.dtype())};
}

}  // namespace quern
