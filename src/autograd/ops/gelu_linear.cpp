#include "autograd/ops/gelu_linear.h"

#include <vector>

#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "kernels/pointwise.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr const char* kOp = "gelu_linear";

Tensor gelu_of(const Tensor& x) {
  const Tensor y = empty_like(x, kOp);
  visit(kOp, x, [&]<class T>(std::type_identity<T>, auto stream) {
    pointwise_forward(y.data<T>(), x.data<T>(), x.numel(), kernels::GeluTanh{}, stream);
  });
  return y;
}

}  // namespace

// saves: x and w
Variable gelu_linear(const Variable& x_in, const Variable& w_in, const Variable& b) {
  const RangeScope range(kOp);
  detail::check_floating(kOp, "x", x_in.value());
  detail::check_ndim(kOp, "x", x_in.value(), 1);
  detail::check_dtype(kOp, "w", w_in.value(), x_in.dtype());
  detail::check_device(kOp, "w", w_in.value(), x_in.device());
  QUERN_CHECK(w_in.shape().ndim() == 2 && w_in.dim(1) == x_in.dim(-1), "gelu_linear: w has shape ",
              w_in.shape(), ", expected (out, ", x_in.dim(-1), ") for x ", x_in.shape());
  std::vector<Variable> inputs{x_in, w_in};
  if (b.defined()) {
    detail::check_shape(kOp, "b", b.value(), {w_in.dim(0)});
    detail::check_dtype(kOp, "b", b.value(), x_in.dtype());
    detail::check_device(kOp, "b", b.value(), x_in.device());
    inputs.push_back(b);
  }
  const Tensor x = x_in.value().contiguous();
  const Tensor& w = w_in.value();
  const Tensor y =
      Tensor::empty(detail::replace_last(x.shape(), w.dim(0)), x.dtype(), x.device(), kOp);
  detail::matrix_product(detail::as_rows(y), detail::as_rows(gelu_of(x)), false, w, true, false,
                         b.value());

  return record(kOp, y, inputs, [x, w, biased = b.defined()](Gradients& g) {
    const Tensor dy = detail::as_rows(g.output());
    Tensor h;  // the gradient of gelu_tanh's output, then that output
    if (g.needs(0)) {
      h = empty_like(x, kOp);
      detail::matrix_product(detail::as_rows(h), dy, false, w, false);
      const Tensor dx = empty_like(x, kOp);
      visit(kOp, x, [&]<class T>(std::type_identity<T>, auto stream) {
        gelu_backward_and_output(dx.data<T>(), h.data<T>(), x.data<T>(), x.numel(), stream);
      });
      g.add(0, dx);
    } else if (g.needs(1)) {
      h = gelu_of(x);
    }
    if (g.needs(1)) {
      const auto [dw, add] = g.target(1);
      detail::matrix_product(dw, dy, true, detail::as_rows(h), false, add);
    }
    if (biased && g.needs(2)) g.add(2, detail::sum_to(dy, {dy.dim(1)}, g.dtype(2)));
  });
}

}  // namespace quern
