#include "autograd/ops/naive.h"

#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/common.h"
#include "autograd/ops/concat.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/split.h"
#include "autograd/ops/view.h"

namespace quern {

Variable naive_rms_norm(const Variable& x, const Variable& w, double eps,
                        std::optional<DType> out) {
  const RangeScope range("naive_rms_norm");
  const Variable wide = cast(x, detail::accumulate_type(x.dtype()));
  const Variable mean_square = mean(mul(wide, wide), -1, true);
  const Variable rstd = pow(scale(mean_square, 1.0, eps), -0.5);
  return cast(mul(mul(wide, rstd), w), out.value_or(x.dtype()));
}

std::pair<Variable, Variable> naive_add_rms_norm(const Variable& x, const Variable& y,
                                                 const Variable& w, double eps) {
  const Variable sum = add(x, cast(y, x.dtype()));
  return {sum, naive_rms_norm(sum, w, eps, y.dtype())};
}

Variable naive_layer_norm(const Variable& x, const Variable& w, const Variable& b, double eps) {
  const RangeScope range("naive_layer_norm");
  const Variable wide = cast(x, detail::accumulate_type(x.dtype()));
  const Variable centred = sub(wide, mean(wide, -1, true));
  const Variable variance = mean(mul(centred, centred), -1, true);
  const Variable rstd = pow(scale(variance, 1.0, eps), -0.5);
  return cast(add(mul(mul(centred, rstd), w), b), x.dtype());
}

Variable naive_rope(const Variable& x, const RopeTable& table, const Tensor& positions,
                    int64_t first) {
  const RangeScope range("naive_rope");
  const int64_t T = x.dim(1), half = x.dim(-1) / 2;
  const auto angles = [&](const Tensor& of) {  // (T, 1, D/2) or (B, T, 1, D/2), to all heads
    const Tensor rows =
        positions.defined() ? embedding(of, positions).value() : of.slice(0, first, first + T);
    Shape shape = rows.shape();
    shape[shape.ndim() - 1] = 1;
    shape.push_back(half);
    return rows.reshape(shape);
  };
  const Tensor cos = angles(table.cos), sin = angles(table.sin);
  const std::vector<Variable> halves =
      split(cast(x, detail::accumulate_type(x.dtype())), {half, half}, -1);
  const Variable y1 = sub(mul(halves[0], cos), mul(halves[1], sin));
  const Variable y2 = add(mul(halves[1], cos), mul(halves[0], sin));
  return cast(concat({y1, y2}, -1), x.dtype());
}

Variable naive_swiglu(const Variable& gate_up) {
  const RangeScope range("naive_swiglu");
  const int64_t F = gate_up.dim(-1) / 2;
  const std::vector<Variable> halves = split(gate_up, {F, F}, -1);
  return mul(silu(halves[0]), halves[1]);
}

}  // namespace quern
