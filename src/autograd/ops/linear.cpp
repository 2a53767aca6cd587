#include "autograd/ops/linear.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/common.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/saved.h"

namespace quern {

// saves: x (or its recipe) where w needs a gradient, w where x does
Variable linear(const Variable& x_in, const Variable& w_in) {
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
  detail::matrix_product(detail::as_rows(y), x, false, w, true);

  const Saved saved_x = w_in.requires_grad() ? Saved(x_in) : Saved();
  const Tensor saved_w = x_in.requires_grad() ? w : Tensor();
  return record("linear", y, {x_in, w_in}, [saved_x, saved_w](Gradients& g) {
    const Tensor dy = detail::as_rows(g.output());
    if (g.needs(0)) {
      const auto [dx, add] = g.target(0);
      detail::matrix_product(detail::as_rows(dx), dy, false, saved_w, false, add);
    }
    if (g.needs(1)) {
      const auto [dw, add] = g.target(1);
      detail::matrix_product(dw, dy, true, detail::as_rows(saved_x.value()), false, add);
    }
  });
}

Variable linear(const Variable& x, const Variable& w, const Variable& b) {
  detail::check_shape("linear", "b", b.value(), {w.dim(0)});
  return add(linear(x, w), b);
}

}  // namespace quern
