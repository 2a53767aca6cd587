#include "autograd/ops/rms_norm.h"

#include "autograd/ops/common.h"
#include "kernels/rms_norm.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

namespace {

// Calls f(TX, TY, stream) for the types of the residual stream and of the activations.
template <class F>
void visit_norm(const Tensor& x, DType out, F&& f) {
  visit("rms_norm", x, [&]<class TX>(std::type_identity<TX> tx, auto stream) {
    if (out == x.dtype()) return f(tx, tx, stream);
    if constexpr (std::is_same_v<TX, float>) {
      if (out == DType::bf16) return f(tx, std::type_identity<bfloat16>{}, stream);
    }
    fail(cat("rms_norm: cannot give ", out, " from x of ", x.dtype(),
             ", expected the same, or bf16 from f32"));
  });
}

void check_arguments(const char* op, const Tensor& x, const Tensor& w, DType out) {
  detail::check_floating(op, "x", x);
  detail::check_ndim(op, "x", x, 1);
  detail::check_dtype(op, "w", w, detail::accumulate_type(out));
  detail::check_device(op, "w", w, x.device());
  detail::check_shape(op, "w", w, {x.dim(-1)});
}

struct NormInputs {
  Tensor x, w, rstd;
  int64_t rows, C;
  double eps;
};

// The normed rows, of type `out`; fills s.rstd.
Tensor normed_rows(const NormInputs& s, DType out) {
  const Tensor y = Tensor::empty(s.x.shape(), out, s.x.device(), "rms_norm");
  visit_norm(s.x, out,
             [&]<class TX, class TY>(std::type_identity<TX>, std::type_identity<TY>, auto stream) {
               rms_norm_forward(y.data<TY>(), s.rstd.data<acc_t<TY>>(), s.x.data<TX>(),
                                s.w.data<acc_t<TY>>(), s.rows, s.C, s.eps, stream);
             });
  return y;
}

// Adds the gradient of w (input `w_input`) and returns that of x, dsum included when it is defined.
// z = x rstd: dx = dsum + rstd (w dy - z mean(w dy z)), dw = sum over rows of dy z.
Tensor normed_gradient(Gradients& g, int w_input, const NormInputs& s, const Tensor& dy,
                       const Tensor& dsum) {
  const bool reuse = dsum.defined() && dsum.is_sole_owner();
  const Tensor dx = reuse ? dsum : empty_like(s.x, "rms_norm");
  detail::SumTarget dw(g, w_input, s.w.dtype());
  visit_norm(s.x, dy.dtype(),
             [&]<class TX, class TY>(std::type_identity<TX>, std::type_identity<TY>, auto stream) {
               using detail::data_or_null;
               const Tensor work =
                   detail::scratch(rms_norm_backward_scratch(s.rows, s.C, stream), dy.device());
               rms_norm_backward(dx.data<TX>(), data_or_null<acc_t<TY>>(dw.sum), dy.data<TY>(),
                                 data_or_null<TX>(dsum), s.x.data<TX>(), s.w.data<acc_t<TY>>(),
                                 s.rstd.data<acc_t<TY>>(), s.rows, s.C, dw.add, work.raw_data(),
                                 stream);
             });
  dw.finish();
  return dx;
}

}  // namespace

// saves: x, w and one number a row, of which the output can be computed again
Variable rms_norm(const Variable& x_in, const Variable& w_in, double eps,
                  std::optional<DType> out) {
  const RangeScope range("rms_norm");
  const DType dtype = out.value_or(x_in.dtype());
  check_arguments("rms_norm", x_in.value(), w_in.value(), dtype);
  const Tensor x = x_in.value().contiguous(), w = w_in.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), C = x.dim(-1);
  const Tensor rstd = Tensor::empty({rows}, w.dtype(), x.device(), "rms_norm rstd");
  const NormInputs s{x, w, rstd, rows, C, eps};
  const Variable y = record("rms_norm", normed_rows(s, dtype), {x_in, w_in}, [s](Gradients& g) {
    g.add(0, normed_gradient(g, 1, s, g.output(), {}));
  });
  return y.with_recipe([s, dtype] { return normed_rows(s, dtype); });
}

// saves: the sum, w and one number a row, of which `normed` can be computed again
std::pair<Variable, Variable> add_rms_norm(const Variable& x_in, const Variable& y_in,
                                           const Variable& w_in, double eps) {
  const RangeScope range("add_rms_norm");
  const DType dtype = y_in.dtype();
  check_arguments("add_rms_norm", x_in.value(), w_in.value(), dtype);
  detail::check_device("add_rms_norm", "y", y_in.value(), x_in.device());
  detail::check_shape("add_rms_norm", "y", y_in.value(), x_in.shape());
  const Tensor x = x_in.value().contiguous(), y = y_in.value().contiguous();
  const Tensor w = w_in.value().contiguous();
  const int64_t rows = detail::count_leading(x.shape()), C = x.dim(-1);
  const Tensor sum = empty_like(x, "add_rms_norm sum"), normed = empty_like(y, "add_rms_norm");
  const Tensor rstd = Tensor::empty({rows}, w.dtype(), x.device(), "rms_norm rstd");
  visit_norm(x, dtype,
             [&]<class TX, class TY>(std::type_identity<TX>, std::type_identity<TY>, auto stream) {
               add_rms_norm_forward(sum.data<TX>(), normed.data<TY>(), rstd.data<acc_t<TY>>(),
                                    x.data<TX>(), y.data<TY>(), w.data<acc_t<TY>>(), rows, C, eps,
                                    stream);
             });

  // Both inputs get the same gradient: what reaches the sum directly, and what comes through the
  // norm. Either may be missing.
  const NormInputs s{sum, w, rstd, rows, C, eps};
  const std::vector<Variable> outputs = record(
      "add_rms_norm", std::vector{sum, normed}, {x_in, y_in, w_in}, [s, dtype](Gradients& g) {
        const Tensor& dsum = g.output(0);
        const Tensor& dnormed = g.output(1);
        const Tensor dx = dnormed.defined() ? normed_gradient(g, 2, s, dnormed, dsum) : dsum;
        g.add(0, dx);
        if (g.needs(1)) g.add(1, dx.to(dtype));
      });
  return {outputs[0], outputs[1].with_recipe([s, dtype] { return normed_rows(s, dtype); })};
}

}  // namespace quern
