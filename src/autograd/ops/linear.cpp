#include "autograd/ops/linear.h"

#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "autograd/saved.h"

namespace quern {

namespace {

// saves: x (or its recipe) if w needs a gradient, w if x does. b may be undefined.
Variable linear_of(const Variable& x_in, const Variable& w_in, const Variable& b,
                   const detail::LinearProduct& product) {
  const RangeScope range("linear");
  detail::check_floating("linear", "x", x_in.value());
  detail::check_ndim("linear", "x", x_in.value(), 1);
  detail::check_dtype("linear", "w", w_in.value(), x_in.dtype());
  detail::check_device("linear", "w", w_in.value(), x_in.device());
  QUERN_CHECK(w_in.shape().ndim() == 2 && w_in.dim(1) == x_in.dim(-1), "linear: w has shape ",
              w_in.shape(), ", expected (out, ", x_in.dim(-1), ") for x ", x_in.shape());
  const Tensor x = detail::as_rows(x_in.value());
  const Tensor& w = w_in.value();
  const Tensor y =
      Tensor::empty(detail::replace_last(x_in.shape(), w.dim(0)), x.dtype(), x.device(), "linear");
  product(detail::as_rows(y), x, w);

  const Saved saved_x = w_in.requires_grad() ? Saved(x_in) : Saved();
  const Tensor saved_w = x_in.requires_grad() ? w : Tensor();
  std::vector<Variable> inputs{x_in, w_in};
  if (b.defined()) inputs.push_back(b);
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

void multiply(const Tensor& y, const Tensor& x, const Tensor& w) {
  detail::matrix_product(y, x, false, w, true);
}

}  // namespace

Variable linear(const Variable& x, const Variable& w) {
  return linear_of(x, w, {}, multiply);
}

Variable linear(const Variable& x, const Variable& w, const Variable& b) {
  detail::check_floating("linear", "b", b.value());
  detail::check_shape("linear", "b", b.value(), {w.dim(0)});
  detail::check_dtype("linear", "b", b.value(), x.dtype());
  detail::check_device("linear", "b", b.value(), x.device());
  return linear_of(x, w, b, [&](const Tensor& y, const Tensor& rows, const Tensor& weight) {
    detail::matrix_product(y, rows, false, weight, true, false, b.value());
  });
}

Variable detail::linear_by(const Variable& x, const Variable& w, const LinearProduct& product) {
  return linear_of(x, w, {}, product);
}

}  // namespace quern
