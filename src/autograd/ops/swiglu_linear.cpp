#include "autograd/ops/swiglu_linear.h"

#include "autograd/ops/common.h"
#include "autograd/ops/matrix_product.h"
#include "kernels/swiglu.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr const char* kOp = "swiglu_linear";

// h (N, F) = swiglu of gate_up's rows
Tensor product_of(const Tensor& gate_up, int64_t N, int64_t F) {
  const Tensor h = Tensor::empty({N, F}, gate_up.dtype(), gate_up.device(), kOp);
  visit(kOp, gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
    swiglu_forward(h.data<T>(), gate_up.data<T>(), N, F, stream);
  });
  return h;
}

}  // namespace

// saves: gate_up and w
Variable swiglu_linear(const Variable& gate_up_in, const Variable& w_in) {
  const RangeScope range(kOp);
  detail::check_floating(kOp, "gate_up", gate_up_in.value());
  detail::check_ndim(kOp, "gate_up", gate_up_in.value(), 1);
  detail::check_dtype(kOp, "w", w_in.value(), gate_up_in.dtype());
  detail::check_device(kOp, "w", w_in.value(), gate_up_in.device());
  QUERN_CHECK(w_in.shape().ndim() == 2 && gate_up_in.dim(-1) == 2 * w_in.dim(1),
              "swiglu_linear: w has shape ", w_in.shape(), " and gate_up ", gate_up_in.shape(),
              ", expected (C, F) and (..., 2 F)");
  const Tensor gate_up = gate_up_in.value().contiguous();
  const Tensor& w = w_in.value();
  const int64_t N = detail::count_leading(gate_up.shape()), F = w.dim(1);
  const Tensor y = Tensor::empty(detail::replace_last(gate_up.shape(), w.dim(0)), gate_up.dtype(),
                                 gate_up.device(), kOp);
  detail::matrix_product(detail::as_rows(y), product_of(gate_up, N, F), false, w, true);

  return record(kOp, y, {gate_up_in, w_in}, [gate_up, w, N, F](Gradients& g) {
    const Tensor dy = detail::as_rows(g.output());
    Tensor h;
    if (g.needs(0)) {
      const Tensor dh = Tensor::empty({N, F}, gate_up.dtype(), gate_up.device(), kOp);
      detail::matrix_product(dh, dy, false, w, false);
      const Tensor d_gate_up =
          Tensor::empty(gate_up.shape(), gate_up.dtype(), gate_up.device(), kOp);
      visit(kOp, gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
        swiglu_backward_and_output(d_gate_up.data<T>(), dh.data<T>(), gate_up.data<T>(), N, F,
                                   stream);
      });
      h = dh;  // which now holds the output
      g.add(0, d_gate_up);
    } else {
      h = product_of(gate_up, N, F);
    }
    if (g.needs(1)) {
      const auto [dw, add] = g.target(1);
      detail::matrix_product(dw, dy, true, h, false, add);
    }
  });
}

}  // namespace quern
