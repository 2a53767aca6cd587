#include "autograd/ops/norm.h"

#include "autograd/ops/fp8.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/sum_target.h"
#include "autograd/saved.h"
#include "kernels/layer_norm.h"
#include "kernels/rms_norm.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern::detail {

namespace {

// Calls f(TX, TY, stream) for the types of the residual stream and of the activations.
template <class F>
void visit_norm(const char* op, const Tensor& x, DType out, F&& f) {
  visit(op, x, [&]<class TX>(std::type_identity<TX> tx, auto stream) {
    if (out == x.dtype()) return f(tx, tx, stream);
    if constexpr (std::is_same_v<TX, float>) {
      if (out == DType::bf16) return f(tx, std::type_identity<bfloat16>{}, stream);
    }
    fail(cat(op, ": cannot give ", out, " from x of ", x.dtype(),
             ", expected the same, or bf16 from f32"));
  });
}

// A norm of x whose output can be computed again. b and mean are undefined for RMSNorm.
struct Norm {
  const char* op;
  Tensor x, w, b, mean, rstd;
  DType out;
  int64_t rows, C;
  double eps;
};

// Checks the arguments. The statistics are added later.
Norm make_norm(const NormOp& p, const Variable& x, DType out) {
  const char* const op = p.names.op;
  check_floating(op, "x", x.value());
  check_ndim(op, "x", x.value(), 1);
  const auto packed = [&](const char* name, const Variable& v) {
    if (!v.defined()) return Tensor();
    check_like(op, name, v.value(), accumulate_type(out), x.device());
    check_shape(op, name, v.value(), {x.dim(-1)});
    return v.value().contiguous();
  };
  return {op,
          x.value().contiguous(),
          packed("w", p.w),
          packed("b", p.b),
          {},
          {},
          out,
          count_leading(x.shape()),
          x.dim(-1),
          p.eps};
}

// Memory for the statistics; uninitialised.
void add_statistics(Norm& n, const NormNames& names) {
  const auto column = [&](const char* name) {
    return Tensor::empty({n.rows}, n.w.dtype(), n.x.device(), name);
  };
  if (n.b.defined()) n.mean = column(names.mean);
  n.rstd = column(names.rstd);
}

Tensor empty_output(const Norm& n) {
  return Tensor::empty(n.x.shape(), n.out, n.x.device(), n.op);
}

// y = the normed rows of n.x, or with a branch those of sum = n.x + branch, which it also writes.
// Fills the statistics.
void compute(const Norm& n, const Tensor& y, const Tensor& sum = {}, const Tensor& branch = {}) {
  visit_norm(n.op, n.x, n.out,
             [&]<class TX, class TY>(std::type_identity<TX>, std::type_identity<TY>, auto stream) {
               using A = acc_t<TY>;
               TX* const total = data_or_null<TX>(sum);
               const TX* const x = n.x.data<TX>();
               const TY* const other = data_or_null<TY>(branch);
               const A* const w = n.w.data<A>();
               if (n.b.defined()) {
                 add_layer_norm_forward(total, y.data<TY>(), n.mean.data<A>(), n.rstd.data<A>(), x,
                                        other, w, n.b.data<A>(), n.rows, n.C, n.eps, stream);
               } else {
                 add_rms_norm_forward(total, y.data<TY>(), n.rstd.data<A>(), x, other, w, n.rows,
                                      n.C, n.eps, stream);
               }
             });
}

Tensor normed_rows(const Norm& n) {
  const Tensor y = empty_output(n);
  compute(n, y);
  return y;
}

std::shared_ptr<Recipe> recipe_of(const Norm& norm) {
  const auto n = std::make_shared<const Norm>(norm);
  const auto value = [n] { return normed_rows(*n); };
  if (norm.out != DType::bf16) return std::make_shared<Recipe>(value);
  return std::make_shared<Recipe>(value, [n] {
    const NormTensors rows{as_rows(n->x), n->w, n->b, n->mean, n->rstd};
    return quantize_norm(rows, {.matrix = false}).transpose;
  });
}

// Adds the gradients of w (input `w_input`) and of b (the next input). Returns the gradient of x,
// including dsum if that is defined.
Tensor normed_gradient(Gradients& g, int w_input, const Norm& n, const Tensor& dy,
                       const Tensor& dsum) {
  const bool reuse = dsum.defined() && dsum.is_sole_owner();
  const Tensor dx = reuse ? dsum : empty_like(n.x, n.op);
  const DType sums = n.w.dtype();
  SumTarget dw(g, w_input, sums);
  std::optional<SumTarget> db;
  if (n.b.defined()) db.emplace(g, w_input + 1, sums);
  const Tensor work = scratch(dy.device(), [&](auto stream) {
    return db ? layer_norm_backward_scratch(n.rows, n.C, stream)
              : rms_norm_backward_scratch(n.rows, n.C, stream);
  });
  visit_norm(n.op, n.x, n.out,
             [&]<class TX, class TY>(std::type_identity<TX>, std::type_identity<TY>, auto stream) {
               using A = acc_t<TY>;
               const TX* const above = data_or_null<TX>(dsum);
               A* const to_w = data_or_null<A>(dw.sum);
               const A *const w = n.w.data<A>(), *const rstd = n.rstd.data<A>();
               if (db) {
                 layer_norm_backward(dx.data<TX>(), to_w, data_or_null<A>(db->sum), dy.data<TY>(),
                                     above, n.x.data<TX>(), w, n.mean.data<A>(), rstd, n.rows, n.C,
                                     dw.add, db->add, work.raw_data(), stream);
               } else {
                 rms_norm_backward(dx.data<TX>(), to_w, dy.data<TY>(), above, n.x.data<TX>(), w,
                                   rstd, n.rows, n.C, dw.add, work.raw_data(), stream);
               }
             });
  dw.finish();
  if (db) db->finish();
  return dx;
}

std::vector<Variable> with_parameters(std::vector<Variable> inputs, const NormOp& p) {
  inputs.push_back(p.w);
  if (p.b.defined()) inputs.push_back(p.b);
  return inputs;
}

}  // namespace

// saves: x, w and each row's statistics; they give the output again
Variable NormOp::of(const Variable& x, std::optional<DType> out) const {
  const RangeScope range(names.op);
  Norm n = make_norm(*this, x, out.value_or(x.dtype()));
  add_statistics(n, names);
  const Variable y =
      record(names.op, normed_rows(n), with_parameters({x}, *this),
             [n](Gradients& g) { g.add(0, normed_gradient(g, 1, n, g.output(), {})); });
  return y.with_recipe(recipe_of(n));
}

// saves: the sum, w and each row's statistics; they give `normed` again
std::pair<Variable, Variable> NormOp::of_sum(const Variable& x, const Variable& y) const {
  const RangeScope range(names.op);
  Norm n = make_norm(*this, x, y.dtype());
  check_device(names.op, "y", y.value(), x.device());
  check_shape(names.op, "y", y.value(), x.shape());
  const Tensor sum = empty_like(n.x, names.sum), normed = empty_output(n);
  add_statistics(n, names);
  compute(n, normed, sum, y.value().contiguous());
  n.x = sum;

  // Both inputs get the same gradient: that of the sum plus that through the norm. Either may be
  // missing.
  const std::vector<Variable> outputs =
      record(names.op, std::vector{sum, normed}, with_parameters({x, y}, *this), [n](Gradients& g) {
        const Tensor& dsum = g.output(0);
        const Tensor& dnormed = g.output(1);
        const Tensor dx = dnormed.defined() ? normed_gradient(g, 2, n, dnormed, dsum) : dsum;
        g.add(0, dx);
        if (g.needs(1)) g.add(1, dx.to(n.out));
      });
  return {outputs[0], outputs[1].with_recipe(recipe_of(n))};
}

}  // namespace quern::detail
