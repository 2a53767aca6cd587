#include "autograd/ops/naive.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/concat.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/split.h"
#include "autograd/ops/view.h"

namespace quern {

namespace {

// 1 / sqrt(mean(x^2) + eps) of each row, as a column.
Variable rstd_of(const Variable& x, double eps) {
  const double share = 1.0 / static_cast<double>(x.dim(-1));
  return pow(scale(sum_squares(x, -1, true), share, eps), -0.5);
}

}  // namespace

Variable naive_rms_norm(const Variable& x, const Variable& w, double eps,
                        std::optional<DType> out) {
  const RangeScope range("naive_rms_norm");
  const Variable wide = cast(x, detail::accumulate_type(x.dtype()));
  return cast(mul(mul(wide, rstd_of(wide, eps)), w), out.value_or(x.dtype()));
}

std::pair<Variable, Variable> naive_add_rms_norm(const Variable& x, const Variable& y,
                                                 const Variable& w, double eps) {
  const Variable sum = add(x, cast(y, x.dtype()));
  return {sum, naive_rms_norm(sum, w, eps, y.dtype())};
}

Variable naive_layer_norm(const Variable& x, const Variable& w, const Variable& b, double eps,
                          std::optional<DType> out) {
  const RangeScope range("naive_layer_norm");
  const Variable wide = cast(x, detail::accumulate_type(x.dtype()));
  const Variable centred = sub(wide, mean(wide, -1, true));
  return cast(add(mul(mul(centred, rstd_of(centred, eps)), w), b), out.value_or(x.dtype()));
}

std::pair<Variable, Variable> naive_add_layer_norm(const Variable& x, const Variable& y,
                                                   const Variable& w, const Variable& b,
                                                   double eps) {
  const Variable sum = add(x, cast(y, x.dtype()));
  return {sum, naive_layer_norm(sum, w, b, eps, y.dtype())};
}

// y = x cos + (x2, x1) (-sin, sin), with the halves x1 and x2 as a dimension of two. Computes in
// (B, H, T, D), the layout of attention's products, and returns a (B, T, H, D) view.
Variable naive_rope(const Variable& x, const RopeTable& table, const Tensor& positions,
                    int64_t first) {
  const RangeScope range("naive_rope");
  const int64_t T = x.dim(1), half = x.dim(-1) / 2;
  // (1, 1, T, 1, D/2) or (B, 1, T, 1, D/2): shared by all heads and both halves.
  const auto angles = [&](const Tensor& of) {
    const Tensor rows =
        positions.defined() ? embedding(of, positions).value() : of.slice(0, first, first + T);
    return rows.reshape({rows.ndim() == 3 ? rows.dim(0) : 1, 1, T, 1, half});
  };
  const Tensor cos = angles(table.cos), sin = angles(table.sin);
  const Tensor signed_sin = concat({neg(sin), sin}, -2).value();
  const Variable wide = permute(cast(x, detail::accumulate_type(x.dtype())), {0, 2, 1, 3});
  const std::vector<Variable> halves = split(wide, {half, half}, -1);
  const Shape paired{x.dim(0), x.dim(2), T, 2, half};
  const Variable swapped = reshape(concat({halves[1], halves[0]}, -1), paired);
  const Variable y = add(mul(reshape(wide, paired), cos), mul(swapped, signed_sin));
  return permute(cast(reshape(y, wide.shape()), x.dtype()), {0, 2, 1, 3});
}

Variable naive_swiglu(const Variable& gate_up) {
  const RangeScope range("naive_swiglu");
  const int64_t F = gate_up.dim(-1) / 2;
  const std::vector<Variable> halves = split(gate_up, {F, F}, -1);
  return mul(silu(halves[0]), halves[1]);
}

}  // namespace quern
