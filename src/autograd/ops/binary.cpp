#include "autograd/ops/binary.h"

#include <type_traits>

#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
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

// The gradient of an operand of `shape`, from the gradient of its broadcast form.
Tensor to_operand(const Tensor& grad, const Shape& shape) {
  return grad.shape() == shape ? grad : detail::sum_to(grad.contiguous(), shape);
}

// The inputs that the backward reads, and those whose gradient equals that of the output.
struct Needs {
  bool reads_a, reads_b, passes_a, passes_b;
};

Needs needs_of(const kernels::BinaryOp& op) {
  return std::visit(
      []<class F>(const F&) {
        constexpr bool kAdds = std::is_same_v<F, kernels::Add>;
        return Needs{F::kReadsA, F::kReadsB, kAdds || std::is_same_v<F, kernels::Sub>, kAdds};
      },
      op);
}

}  // namespace

// saves: for mul and div the inputs that the gradients need; for add and sub only shapes
Variable detail::binary(const char* op, const Variable& a_in, const Variable& b_in,
                        const kernels::BinaryOp& f) {
  const RangeScope range(op);
  const Tensor& a = a_in.value();
  const Tensor& b = b_in.value();
  check_floating(op, "a", a);
  check_like(op, "b", b, a.dtype(), a.device());
  const Needs needs = needs_of(f);
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), op);
  const kernels::BinaryLayout layout = broadcast_layout(a, b, shape);
  const Tensor c = Tensor::empty(shape, a.dtype(), a.device(), op);
  visit_pointwise(op, c, [&]<class T>(std::type_identity<T>, auto stream) {
    binary_forward(c.data<T>(), a.data<T>(), b.data<T>(), layout, f, stream);
  });
  const Tensor saved_a = needs.reads_a && b_in.requires_grad() ? a : Tensor();
  const Tensor saved_b = needs.reads_b ? b : Tensor();
  const BackwardFn rule = [op, f, needs, layout, saved_a, saved_b, a_shape = a.shape(),
                           b_shape = b.shape()](Gradients& g) {
    const Tensor& dc = g.strided_output();
    kernels::BinaryLayout strided = layout;
    for (int i = 0; i < strided.ndim; ++i) strided.dc_strides[i] = dc.strides()[i];
    const auto fresh = [&](bool wanted) {
      return wanted ? Tensor::empty(dc.shape(), dc.dtype(), dc.device(), op) : Tensor();
    };
    const Tensor da = fresh(g.needs(0) && !needs.passes_a),
                 db = fresh(g.needs(1) && !needs.passes_b);
    if (da.defined() || db.defined()) {
      visit_pointwise(op, dc, [&]<class T>(std::type_identity<T>, auto stream) {
        binary_backward(data_or_null<T>(da), data_or_null<T>(db), data_or_null<T>(saved_a),
                        data_or_null<T>(saved_b), dc.data<T>(), strided, f, stream);
      });
    }
    if (g.needs(0)) g.add(0, to_operand(needs.passes_a ? dc : da, a_shape));
    if (g.needs(1)) g.add(1, to_operand(needs.passes_b ? dc : db, b_shape));
  };
  const bool is_sum = needs.passes_a && needs.passes_b;
  return is_sum ? record_sum(op, c, {a_in, b_in}, rule) : record(op, c, {a_in, b_in}, rule);
}

}  // namespace quern
