#include "autograd/ops/layer_norm.h"

#include "autograd/ops/common.h"
#include "kernels/layer_norm.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

// saves: x, w and two numbers a row
Variable layer_norm(const Variable& x_in, const Variable& w_in, const Variable& b_in, double eps) {
  const RangeScope range("layer_norm");
  detail::check_floating("layer_norm", "x", x_in.value());
  detail::check_ndim("layer_norm", "x", x_in.value(), 1);
  const DType sums = detail::accumulate_type(x_in.dtype());
  for (const auto& [name, v] : {std::pair{"w", &w_in}, std::pair{"b", &b_in}}) {
    detail::check_dtype("layer_norm", name, v->value(), sums);
    detail::check_device("layer_norm", name, v->value(), x_in.device());
    detail::check_shape("layer_norm", name, v->value(), {x_in.dim(-1)});
  }
  const Tensor x = x_in.value().contiguous();
  const Tensor w = w_in.value().contiguous(), b = b_in.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), C = x.dim(-1);
  const Tensor y = empty_like(x, "layer_norm");
  const Tensor mean = Tensor::empty({rows}, sums, x.device(), "layer_norm mean");
  const Tensor rstd = Tensor::empty({rows}, sums, x.device(), "layer_norm rstd");
  visit("layer_norm", x, [&]<class T>(std::type_identity<T>, auto stream) {
    using A = acc_t<T>;
    layer_norm_forward(y.data<T>(), mean.data<A>(), rstd.data<A>(), x.data<T>(), w.data<A>(),
                       b.data<A>(), rows, C, eps, stream);
  });

  return record(
      "layer_norm", y, {x_in, w_in, b_in}, [x, w, mean, rstd, sums, rows, C](Gradients& g) {
        const Tensor& dy = g.output();
        const Tensor dx = empty_like(x, "layer_norm");
        detail::SumTarget dw(g, 1, sums);
        detail::SumTarget db(g, 2, sums);
        visit("layer_norm", x, [&]<class T>(std::type_identity<T>, auto stream) {
          using A = acc_t<T>;
          using detail::data_or_null;
          const Tensor work =
              detail::scratch(layer_norm_backward_scratch(rows, C, stream), x.device());
          layer_norm_backward(dx.data<T>(), data_or_null<A>(dw.sum), data_or_null<A>(db.sum),
                              dy.data<T>(), x.data<T>(), w.data<A>(), mean.data<A>(),
                              rstd.data<A>(), rows, C, dw.add, db.add, work.raw_data(), stream);
        });
        g.add(0, dx);
        dw.finish();
        db.finish();
      });
}

}  // namespace quern
