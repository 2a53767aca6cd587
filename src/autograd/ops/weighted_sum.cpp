#include "autograd/ops/weighted_sum.h"

#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "kernels/weighted_sum.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

// saves: x and w
Variable weighted_sum(const Variable& x_in, const Variable& w_in) {
  const RangeScope range("weighted_sum");
  detail::check_operands("weighted_sum", "x", x_in.value(), w_in.value());
  detail::check_shape("weighted_sum", "w", w_in.value(), {x_in.dim(-1)});
  const Tensor x = x_in.value().contiguous(), w = w_in.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), C = x.dim(-1);
  const Tensor y =
      Tensor::empty(detail::without_last(x.shape()), x.dtype(), x.device(), "weighted_sum");
  visit("weighted_sum", x, [&]<class T>(std::type_identity<T>, auto stream) {
    weighted_sum_forward(y.data<T>(), x.data<T>(), w.data<T>(), rows, C, stream);
  });

  // dx[r, c] = dy[r] w[c]; dw[c] = sum over r of dy[r] x[r, c], summed in acc_t<T>.
  return record("weighted_sum", y, {x_in, w_in}, [x, w, rows, C](Gradients& g) {
    const Tensor& dy = g.output();
    const Tensor dx = g.needs(0) ? empty_like(x, "weighted_sum") : Tensor();
    detail::SumTarget dw(g, 1, detail::accumulate_type(x.dtype()));
    Tensor work = detail::scratch(
        x.device(), [&](auto stream) { return weighted_sum_backward_scratch(rows, C, stream); });
    visit("weighted_sum", x, [&]<class T>(std::type_identity<T>, auto stream) {
      using detail::data_or_null;
      weighted_sum_backward(data_or_null<T>(dx), data_or_null<acc_t<T>>(dw.sum), dy.data<T>(),
                            x.data<T>(), w.data<T>(), rows, C, dw.add, work.raw_data(), stream);
    });
    work = {};
    if (dx.defined()) g.add(0, dx);
    dw.finish();
  });
}

}  // namespace quern
