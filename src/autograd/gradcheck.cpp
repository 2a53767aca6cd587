#include "autograd/gradcheck.h"

#include <cmath>

#include "base/error.h"

namespace quern {

namespace {

// Fixed weights in [-1, 1] without a pattern that a wrong gradient could share.
std::vector<double> contraction(int64_t n) {
  std::vector<double> weights;
  for (int64_t i = 0; i < n; ++i)
    weights.push_back(std::sin(12.9898 * static_cast<double>(i) + 78.233));
  return weights;
}

double contract(const Variable& y, const std::vector<double>& weights) {
  const std::vector<double> values = y.value().to_vector<double>();
  double total = 0.0;
  for (size_t i = 0; i < values.size(); ++i) total += weights[i] * values[i];
  return total;
}

// The address of element `index` in row-major order of a tensor with any strides.
double* element(const Tensor& x, int64_t index) {
  int64_t offset = 0;
  for (int i = x.ndim() - 1; i >= 0; --i) {
    offset += index % x.shape()[i] * x.strides()[i];
    index /= x.shape()[i];
  }
  return x.data<double>() + offset;
}

std::vector<Variable> as_constants(const std::vector<Tensor>& inputs) {
  return std::vector<Variable>(inputs.begin(), inputs.end());
}

}  // namespace

GradcheckResult gradcheck(const std::function<Variable(const std::vector<Variable>&)>& fn,
                          const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<Variable> leaves;
  for (const Tensor& input : inputs) {
    QUERN_CHECK(input.dtype() == DType::f64 && !input.device().is_cuda(), "gradcheck: an input is ",
                input.dtype(), " on ", input.device(), ", expected f64 on cpu");
    leaves.push_back(Variable::leaf(input));
  }
  const Variable y = fn(leaves);
  const std::vector<double> weights = contraction(y.numel());
  const Tensor dy = Tensor::empty(y.shape(), DType::f64, kCpu);
  for (int64_t i = 0; i < dy.numel(); ++i) dy.data<double>()[i] = weights[static_cast<size_t>(i)];
  if (y.requires_grad()) backward(y, dy);

  GradcheckResult result;
  const NoGrad no_grad;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Leaf& leaf = *leaves[k].leaf_store();
    const std::vector<double> analytic =
        leaf.grad.defined() ? leaf.grad.to_vector<double>()
                            : std::vector<double>(static_cast<size_t>(inputs[k].numel()), 0.0);
    for (int64_t i = 0; i < inputs[k].numel(); ++i) {
      double* x = element(inputs[k], i);
      const double original = *x;
      *x = original + options.eps;
      const double above = contract(fn(as_constants(inputs)), weights);
      *x = original - options.eps;
      const double below = contract(fn(as_constants(inputs)), weights);
      *x = original;
      const double numeric = (above - below) / (2.0 * options.eps);
      const double error = std::abs(analytic[static_cast<size_t>(i)] - numeric);
      result.max_error = std::max(result.max_error, error);
      const bool within = error <= options.atol + options.rtol * std::abs(numeric);
      if (within || !result.ok) continue;  // NaN is not within
      result.ok = false;
      result.message = cat("gradcheck: input ", k, " element ", i, " has gradient ",
                           analytic[static_cast<size_t>(i)], ", central difference ", numeric);
    }
  }
  return result;
}

}  // namespace quern
