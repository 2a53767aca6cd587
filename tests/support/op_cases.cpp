#include "support/op_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "autograd/ops/concat.h"
#include "autograd/ops/view.h"

namespace quern::testing_support {

Tensor values(const Shape& shape, int seed, double low, double high) {
  const Tensor x = Tensor::empty(shape, DType::f64, kCpu);
  for (int64_t i = 0; i < x.numel(); ++i) {
    // Multiples of the golden ratio modulo 1: evenly spread, and no two closer than ~1/n.
    const double step = static_cast<double>(i + 1 + 1000 * seed) * 0.61803398874989484820;
    x.data<double>()[i] = low + (high - low) * (step - std::floor(step));
  }
  return x;
}

Tensor strided_values(const Shape& shape, int seed, double low, double high) {
  Shape stored = shape;
  std::swap(stored[shape.ndim() - 1], stored[shape.ndim() - 2]);
  return values(stored, seed, low, high).transpose(-1, -2);
}

Variable join(const std::vector<Variable>& parts) {
  std::vector<Variable> flat;
  for (const Variable& part : parts) flat.push_back(reshape(part, {part.numel()}));
  return concat(flat, 0);
}

std::vector<std::vector<double>> run_case(const OpCase& op_case, DType dtype) {
  const Device device = Context::current().device();
  const auto place = [&](const Tensor& x, DType as) { return x.to(DType::bf16).to(as).to(device); };
  std::vector<Variable> leaves;
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const bool wide = std::count(op_case.wide.begin(), op_case.wide.end(), i) > 0;
    const DType as = wide && dtype == DType::bf16 ? DType::f32 : dtype;
    leaves.push_back(Variable::leaf(place(op_case.inputs[i], as)));
  }
  const Variable y = op_case.fn(leaves);
  backward(y, place(values(y.shape(), 20), y.dtype()));
  const auto as_doubles = [](const Tensor& x) {
    return x.to(kCpu).to(DType::f64).to_vector<double>();
  };
  std::vector<std::vector<double>> results{as_doubles(y.value())};
  for (const Variable& leaf : leaves) {
    const Tensor& grad = leaf.leaf_store()->grad;
    results.push_back(grad.defined() ? as_doubles(grad) : std::vector<double>());
  }
  return results;
}

double norm(const std::vector<double>& x) {
  double square = 0.0;
  for (const double value : x) square += value * value;
  return std::sqrt(square);
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] == b[i] ? 0.0 : a[i] - b[i];
  return norm(difference);
}

std::vector<OpCase> op_cases() {
  std::vector<OpCase> all;
  for (auto* part : {elementwise_cases, shape_cases, matrix_cases, model_cases}) {
    for (OpCase& c : part()) all.push_back(std::move(c));
  }
  return all;
}

}  // namespace quern::testing_support
