#include "autograd/ops/gelu_linear.h"

#include <vector>

#include "autograd/ops/matrix_product.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "kernels/bias_gelu.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

constexpr const char* kOp = "gelu_linear";

Tensor gelu_of(const Tensor& x, const Tensor& bias) {
  const Tensor y = empty_like(x, kOp);
  visit(kOp, x, [&]<class T>(std::type_identity<T>, auto stream) {
    bias_gelu_forward(y.data<T>(), x.data<T>(), detail::data_or_null<T>(bias),
                      detail::count_leading(x.shape()), x.dim(-1), stream);
  });
  return y;
}

Tensor checked_bias(const char* name, const Variable& bias, int64_t n, const Tensor& x) {
  if (!bias.defined()) return {};
  detail::check_shape(kOp, name, bias.value(), {n});
  detail::check_like(kOp, name, bias.value(), x.dtype(), x.device());
  return bias.value().contiguous();
}

}  // namespace

// saves: x, x_bias and w; gelu_tanh's output if it is kept and w needs a gradient
Variable gelu_linear(const Variable& x_in, const Variable& x_bias, const Variable& w_in,
                     const Variable& b_in, ActivationOutput output,
                     const std::shared_ptr<HostStash>& stash) {
  const RangeScope range(kOp);
  detail::check_operands(kOp, "x", x_in.value(), w_in.value());
  const int64_t F = x_in.dim(-1);
  QUERN_CHECK(w_in.shape().ndim() == 2 && w_in.dim(1) == F, "gelu_linear: w has shape ",
              w_in.shape(), ", expected (out, ", F, ") for x ", x_in.shape());
  const Tensor bias = checked_bias("x_bias", x_bias, F, x_in.value());
  const Tensor b = checked_bias("b", b_in, w_in.dim(0), x_in.value());
  const Tensor x = x_in.value().contiguous();
  const Tensor& w = w_in.value();
  const Tensor y =
      Tensor::empty(detail::replace_last(x_in.shape(), w.dim(0)), x.dtype(), x.device(), kOp);
  const Tensor made = gelu_of(x, bias);
  const auto saved = keep({x}, stash);
  detail::matrix_product(detail::as_rows(y), detail::as_rows(made), false, w, true, false, b);

  const bool keeps = output == ActivationOutput::kept && w_in.requires_grad();
  const Variable none = x_in.detach();  // in an absent bias's place: needs no gradient
  const std::vector<Variable> inputs{x_in, w_in, x_bias.defined() ? x_bias : none,
                                     b_in.defined() ? b_in : none};
  return record(
      kOp, y, inputs, [saved, bias, w, h = keeps ? made : Tensor()](Gradients& g) mutable {
        const Tensor x = saved()[0];
        const Tensor dy = detail::as_rows(g.output());
        const int64_t rows = dy.dim(0), F = x.dim(-1);
        const auto make_dw = [&] {
          const auto [dw, add] = g.target(1);
          detail::matrix_product(dw, dy, true, detail::as_rows(h), false, add);
          h = {};
        };
        const bool again = g.needs(1) && !h.defined();
        if (h.defined()) make_dw();  // first, to free its memory
        if (g.needs(0) || g.needs(2)) {
          const Tensor dh = empty_like(x, kOp);  // takes h where that is made again, else dx
          detail::matrix_product(detail::as_rows(dh), dy, false, w, false);
          const Tensor dx = again ? empty_like(x, kOp) : dh;
          detail::SumTarget d_bias(g, 2, detail::accumulate_type(x.dtype()));
          Tensor work = detail::scratch(x.device(), [&](auto stream) {
            return d_bias.sum.defined() ? bias_gelu_backward_scratch(rows, F, stream) : 0;
          });
          visit(kOp, x, [&]<class T>(std::type_identity<T>, auto stream) {
            using detail::data_or_null;
            bias_gelu_backward(dx.data<T>(), again ? dh.data<T>() : nullptr,
                               data_or_null<acc_t<T>>(d_bias.sum), dh.data<T>(), x.data<T>(),
                               data_or_null<T>(bias), rows, F, d_bias.add, work.raw_data(), stream);
          });
          work = {};
          if (again) h = dh;
          g.add(0, dx);
          d_bias.finish();
        } else if (again) {
          h = gelu_of(x, bias);
        }
        if (again) make_dw();
        if (g.needs(3)) g.add(3, detail::sum_to(dy, {dy.dim(1)}, g.dtype(3)));
      });
}

}  // namespace quern
