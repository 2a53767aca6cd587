#include "autograd/ops/linear.h"

#include "autograd/ops/fp8.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "autograd/saved.h"

namespace quern {

namespace {

// Checks the arguments and returns the result, uninitialised.
Tensor empty_result(const Variable& x, const Variable& w) {
  detail::check_operands("linear", "x", x.value(), w.value());
  QUERN_CHECK(w.shape().ndim() == 2 && w.dim(1) == x.dim(-1), "linear: w has shape ", w.shape(),
              ", expected (out, ", x.dim(-1), ") for x ", x.shape());
  return Tensor::empty(detail::replace_last(x.shape(), w.dim(0)), x.dtype(), x.device(), "linear");
}

std::vector<Variable> inputs_of(const Variable& x, const Variable& w, const Variable& b) {
  return b.defined() ? std::vector{x, w, b} : std::vector{x, w};
}

// saves: x (or its recipe) if w needs a gradient, w if x does. b may be undefined.
Variable linear_of(const Variable& x_in, const Variable& w_in, const Variable& b,
                   const detail::LinearProduct& product) {
  const RangeScope range("linear");
  const Tensor y = empty_result(x_in, w_in);
  const Tensor& w = w_in.value();
  product(detail::as_rows(y), detail::as_rows(x_in.value()), w);

  const Saved saved_x = w_in.requires_grad() ? Saved(x_in) : Saved();
  const Tensor saved_w = x_in.requires_grad() ? w : Tensor();
  const std::vector<Variable> inputs = inputs_of(x_in, w_in, b);
  return record("linear", y, inputs, [saved_x, saved_w, biased = b.defined()](Gradients& g) {
    const Tensor dy = detail::as_rows(g.output());
    if (g.needs(0)) {
      const auto [dx, add] = g.target(0);
      detail::matrix_product(detail::as_rows(dx), dy, false, saved_w, false, add);
    }
    if (g.needs(1)) {
      const auto [dw, add] = g.target(1);
      detail::matrix_product(dw, dy, true, detail::as_rows(saved_x.value()), false, add);
    }
    if (biased && g.needs(2)) g.add(2, detail::sum_to(dy, {dy.dim(1)}, g.dtype(2)));
  });
}

// The same in FP8. saves: x's transpose in FP8 (or x's recipe) if w needs a gradient, w if x does.
Variable linear_in_fp8(const Variable& x, const Variable& w_in, const Variable& b) {
  const RangeScope range("linear");
  const Tensor y = empty_result(x, w_in);
  const Tensor& w = w_in.value();
  detail::SavedTranspose saved_x(x, w_in);
  detail::fp8_product(detail::as_rows(y), saved_x.quantize(detail::as_rows(x.value())),
                      detail::fp8_weight(w));
  if (b.defined()) detail::add_bias(detail::as_rows(y), b.value());

  const Tensor saved_w = x.requires_grad() ? w : Tensor();
  const auto backward = [saved_x, saved_w, biased = b.defined()](Gradients& g) mutable {
    const Tensor dy = detail::as_rows(g.output());
    detail::Fp8Pair grad = detail::quantize(dy, detail::Fp8Operand::gradient,
                                            {.matrix = g.needs(0), .transpose = g.needs(1)});
    saved_x.differentiate(g, grad, saved_w);
    if (biased && g.needs(2)) g.add(2, detail::sum_to(dy, {dy.dim(1)}, g.dtype(2)));
  };
  return record("linear", y, inputs_of(x, w_in, b), backward);
}

void multiply(const Tensor& y, const Tensor& x, const Tensor& w) {
  detail::matrix_product(y, x, false, w, true);
}

}  // namespace

Variable linear(const Variable& x, const Variable& w) {
  if (detail::multiplies_in_fp8(x.value())) return linear_in_fp8(x, w, {});
  return linear_of(x, w, {}, multiply);
}

Variable linear(const Variable& x, const Variable& w, const Variable& b) {
  detail::check_floating("linear", "b", b.value());
  detail::check_shape("linear", "b", b.value(), {w.dim(0)});
  detail::check_like("linear", "b", b.value(), x.dtype(), x.device());
  if (detail::multiplies_in_fp8(x.value())) return linear_in_fp8(x, w, b);
  return linear_of(x, w, b, [&](const Tensor& y, const Tensor& rows, const Tensor& weight) {
    detail::matrix_product(y, rows, false, weight, true, false, b.value());
  });
}

Variable detail::linear_by(const Variable& x, const Variable& w, const LinearProduct& product) {
  return linear_of(x, w, {}, product);
}

}  // namespace quern
