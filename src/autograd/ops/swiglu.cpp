#include "autograd/ops/swiglu.h"

#include "autograd/ops/common.h"
#include "kernels/swiglu.h"
#include "tensor/visit.h"

namespace quern {

namespace {

Tensor swiglu_of(const Tensor& gate_up) {
  const int64_t rows = detail::count_leading(gate_up.shape()), F = gate_up.dim(-1) / 2;
  const Tensor y = Tensor::empty(detail::replace_last(gate_up.shape(), F), gate_up.dtype(),
                                 gate_up.device(), "swiglu");
  visit("swiglu", gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
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
      record("swiglu", swiglu_of(gate_up), {input}, [gate_up, rows, F](Gradients& g) {
        const Tensor dx =
            Tensor::empty(gate_up.shape(), gate_up.dtype(), gate_up.device(), "swiglu");
        visit("swiglu", gate_up, [&]<class T>(std::type_identity<T>, auto stream) {
          swiglu_backward(dx.data<T>(), gate_up.data<T>(), g.output().data<T>(), rows, F, stream);
        });
        g.add(0, dx);
      });
  return y.with_recipe([gate_up] { return swiglu_of(gate_up); });
}

}  // namespace quern
