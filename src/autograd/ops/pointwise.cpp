#include "autograd/ops/pointwise.h"

#include <utility>

#include "autograd/ops/common.h"
#include "kernels/pointwise.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// x and where it lies: as it is when its rows are at one even distance, else packed.
std::pair<Tensor, kernels::PointwiseRows> in_rows(const Tensor& x) {
  if (x.is_contiguous()) return {x, {}};
  const Tensor rows = detail::as_rows(x);
  if (rows.strides()[1] != 1) return {rows.contiguous(), {}};
  return {rows, {rows.dim(1), rows.strides()[0]}};
}

// saves: x, y or nothing, as the functor says
template <class F>
Variable pointwise(const char* op, const Variable& input, F f) {
  const RangeScope range(op);
  detail::check_floating(op, "x", input.value());
  const auto in = in_rows(input.value());
  const Tensor& x = in.first;
  const kernels::PointwiseRows rows = in.second;
  const Tensor y = Tensor::empty(input.shape(), x.dtype(), x.device(), op);
  visit_pointwise(op, x, [&]<class T>(std::type_identity<T>, auto stream) {
    pointwise_forward(y.data<T>(), x.data<T>(), rows, y.numel(), f, stream);
  });
  const Tensor saved_x = F::kSaved == kernels::Saved::input ? x : Tensor();
  const Tensor saved_y = F::kSaved == kernels::Saved::output ? y : Tensor();
  return record(op, y, {input}, [op, f, saved_x, saved_y, rows](Gradients& g) {
    const Tensor& dy = g.output();
    const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device(), op);
    visit_pointwise(op, dy, [&]<class T>(std::type_identity<T>, auto stream) {
      pointwise_backward(dx.data<T>(), detail::data_or_null<T>(saved_x), rows,
                         detail::data_or_null<T>(saved_y), dy.data<T>(), dy.numel(), f, stream);
    });
    g.add(0, dx);
  });
}

}  // namespace

Variable exp(const Variable& x) {
  return pointwise("exp", x, kernels::Exp{});
}
Variable log(const Variable& x) {
  return pointwise("log", x, kernels::Log{});
}
Variable tanh(const Variable& x) {
  return pointwise("tanh", x, kernels::Tanh{});
}
Variable sigmoid(const Variable& x) {
  return pointwise("sigmoid", x, kernels::Sigmoid{});
}
Variable relu(const Variable& x) {
  return pointwise("relu", x, kernels::Relu{});
}
Variable silu(const Variable& x) {
  return pointwise("silu", x, kernels::Silu{});
}
Variable gelu_tanh(const Variable& x) {
  return pointwise("gelu_tanh", x, kernels::GeluTanh{});
}
Variable gelu_erf(const Variable& x) {
  return pointwise("gelu_erf", x, kernels::GeluErf{});
}
Variable pow(const Variable& x, double exponent) {
  return pointwise("pow", x, kernels::Pow{exponent});
}
Variable sqrt(const Variable& x) {
  return pointwise("sqrt", x, kernels::Sqrt{});
}
Variable scale(const Variable& x, double factor, double offset) {
  return pointwise("scale", x, kernels::Scale{factor, offset});
}
Variable neg(const Variable& x) {
  return pointwise("neg", x, kernels::Scale{-1.0, 0.0});
}

}  // namespace quern
