#include "autograd/ops/binary.h"

#include <type_traits>

#include "autograd/ops/common.h"
#include "kernels/binary.h"
#include "tensor/visit.h"

namespace quern {

namespace {

kernels::BinaryLayout broadcast_layout(const Tensor& a, const Tensor& b, const Shape& shape) {
  kernels::BinaryLayout layout;
  const Tensor wide_a = a.expand(shape), wide_b = b.expand(shape);
  layout.ndim = shape.ndim();
  for (int i = 0; i < shape.ndim(); ++i) {
    layout.shape[i] = shape[i];
    layout.a_strides[i] = wide_a.strides()[i];
    layout.b_strides[i] = wide_b.strides()[i];
  }
  return layout;
}

// The gradient with respect to an operand of `shape`, from that of the broadcast operand.
Tensor to_operand(const Tensor& grad, const Shape& shape) {
  return grad.shape() == shape ? grad : detail::sum_to(grad.contiguous(), shape);
}

// saves: for mul and div the inputs that the gradients need; shapes alone for add and sub
template <class F>
Variable binary(const char* op, const Variable& a_in, const Variable& b_in) {
  const RangeScope range(op);
  const Tensor& a = a_in.value();
  const Tensor& b = b_in.value();
  detail::check_floating(op, "a", a);
  detail::check_dtype(op, "b", b, a.dtype());
  detail::check_device(op, "b", b, a.device());
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), op);
  const kernels::BinaryLayout layout = broadcast_layout(a, b, shape);
  const Tensor c = Tensor::empty(shape, a.dtype(), a.device(), op);
  visit_pointwise(op, c, [&]<class T>(std::type_identity<T>, auto stream) {
    binary_forward(c.data<T>(), a.data<T>(), b.data<T>(), layout, F{}, stream);
  });
  const Tensor saved_a = F::kReadsA && b_in.requires_grad() ? a : Tensor();
  const Tensor saved_b = F::kReadsB ? b : Tensor();
  return record(
      op, c, {a_in, b_in},
      [op, layout, saved_a, saved_b, a_shape = a.shape(), b_shape = b.shape()](Gradients& g) {
        const Tensor& dc = g.strided_output();
        kernels::BinaryLayout strided = layout;
        for (int i = 0; i < strided.ndim; ++i) strided.dc_strides[i] = dc.strides()[i];
        constexpr bool kPassesA =
            std::is_same_v<F, kernels::Add> || std::is_same_v<F, kernels::Sub>;
        constexpr bool kPassesB = std::is_same_v<F, kernels::Add>;
        const auto fresh = [&](bool wanted) {
          return wanted ? Tensor::empty(dc.shape(), dc.dtype(), dc.device(), op) : Tensor();
        };
        const Tensor da = fresh(g.needs(0) && !kPassesA), db = fresh(g.needs(1) && !kPassesB);
        if (da.defined() || db.defined()) {
          visit_pointwise(op, dc, [&]<class T>(std::type_identity<T>, auto stream) {
            using detail::data_or_null;
            binary_backward(data_or_null<T>(da), data_or_null<T>(db), data_or_null<T>(saved_a),
                            data_or_null<T>(saved_b), dc.data<T>(), strided, F{}, stream);
          });
        }
        if (g.needs(0)) g.add(0, to_operand(kPassesA ? dc : da, a_shape));
        if (g.needs(1)) g.add(1, to_operand(kPassesB ? dc : db, b_shape));
      });
}

}  // namespace

Variable add(const Variable& a, const Variable& b) {
  return binary<kernels::Add>("add", a, b);
}
Variable sub(const Variable& a, const Variable& b) {
  return binary<kernels::Sub>("sub", a, b);
}
Variable mul(const Variable& a, const Variable& b) {
  return binary<kernels::Mul>("mul", a, b);
}
Variable div(const Variable& a, const Variable& b) {
  return binary<kernels::Div>("div", a, b);
}

}  // namespace quern
