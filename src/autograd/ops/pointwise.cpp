#include "autograd/ops/pointwise.h"

#include <utility>

#include "autograd/ops/op_checks.h"
#include "kernels/pointwise.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// x and its layout: unchanged if its rows lie at one fixed distance, else packed.
std::pair<Tensor, kernels::PointwiseRows> in_rows(const Tensor& x) {
  if (x.is_contiguous()) return {x, {}};
  const Tensor rows = detail::as_rows(x);
  if (rows.strides()[1] != 1) return {rows.contiguous(), {}};
  return {rows, {rows.dim(1), rows.strides()[0]}};
}

}  // namespace

// saves: x, y or nothing, as the functor states
Variable detail::pointwise(const char* op, const Variable& input, const kernels::PointwiseOp& f) {
  const RangeScope range(op);
  check_floating(op, "x", input.value());
  const auto in = in_rows(input.value());
  const Tensor& x = in.first;
  const kernels::PointwiseRows rows = in.second;
  const Tensor y = Tensor::empty(input.shape(), x.dtype(), x.device(), op);
  visit_pointwise(op, x, [&]<class T>(std::type_identity<T>, auto stream) {
    pointwise_forward(y.data<T>(), x.data<T>(), rows, y.numel(), f, stream);
  });
  const kernels::Saved saved = kernels::saved_by(f);
  const Tensor saved_x = saved == kernels::Saved::input ? x : Tensor();
  const Tensor saved_y = saved == kernels::Saved::output ? y : Tensor();
  return record(op, y, {input}, [op, f, saved_x, saved_y, rows](Gradients& g) {
    const Tensor& dy = g.output();
    const Tensor dx = Tensor::empty(dy.shape(), dy.dtype(), dy.device(), op);
    visit_pointwise(op, dy, [&]<class T>(std::type_identity<T>, auto stream) {
      pointwise_backward(dx.data<T>(), data_or_null<T>(saved_x), rows, data_or_null<T>(saved_y),
                         dy.data<T>(), dy.numel(), f, stream);
    });
    g.add(0, dx);
  });
}

}  // namespace quern
