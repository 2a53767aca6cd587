#include "autograd/ops/swiglu.h"

#include "autograd/ops/common.h"
#include "autograd/ops/matrix_product.h"
#include "kernels/swiglu.h"
#include "tensor/visit.h"

namespace quern {

namespace {

Tensor swiglu_of(const char* op, const Tensor& gate_up) {
  const int64_t rows = detail::count_leading(gate_up.shape()), F = gate_up.dim(-1) / 2;
  const Tensor y = Tensor::empty(detail::replace_last(gate_up.shape(), F), gate_up.dtype(),
                                 gate_up.device(), op);
  visit(op, gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
    swiglu_forward(y.data<T>(), gate_up.data<T>(), rows, F, stream);
  });
  return y;
}

}  // namespace

// saves: gate_up, of which the output can be computed again
Variable swiglu(const Variable& input) {
  const RangeScope range("swiglu");
  detail::check_floating("swiglu", "gate_up", input.value());
  detail::check_ndim("swiglu", "gate_up", input.value(), 1);
  QUERN_CHECK(input.dim(-1) % 2 == 0, "swiglu: gate_up has shape ", input.shape(),
              ", expected an even last extent");
  const Tensor gate_up = input.value().contiguous();
  const int64_t rows = detail::count_leading(gate_up.shape()), F = gate_up.dim(-1) / 2;
  const Variable y =
      record("swiglu", swiglu_of("swiglu", gate_up), {input}, [gate_up, rows, F](Gradients& g) {
        const Tensor dx =
            Tensor::empty(gate_up.shape(), gate_up.dtype(), gate_up.device(), "swiglu");
        visit("swiglu", gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
          swiglu_backward(dx.data<T>(), gate_up.data<T>(), g.output().data<T>(), rows, F, stream);
        });
        g.add(0, dx);
      });
  return y.with_recipe([gate_up] { return swiglu_of("swiglu", gate_up); });
}

// saves: gate_up and w
Variable swiglu_linear(const Variable& gate_up_in, const Variable& w_in) {
  constexpr const char* kOp = "swiglu_linear";
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
  detail::matrix_product(detail::as_rows(y), detail::as_rows(swiglu_of(kOp, gate_up)), false, w,
                         true);

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
      h = detail::as_rows(swiglu_of(kOp, gate_up));
    }
    if (g.needs(1)) {
      const auto [dw, add] = g.target(1);
      detail::matrix_product(dw, dy, true, h, false, add);
    }
  });
}

}  // namespace quern
