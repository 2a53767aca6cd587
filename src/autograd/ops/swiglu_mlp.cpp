#include "autograd/ops/swiglu_mlp.h"

#include <utility>

#include "autograd/ops/fp8.h"
#include "autograd/ops/op_checks.h"
#include "autograd/ops/swiglu.h"

namespace quern {

namespace {

constexpr const char* kOp = "swiglu_mlp";
using detail::Fp8Operand;
using detail::Fp8Pair;
using detail::Fp8Tensor;
using detail::SwigluGradientInFp8;

void check_arguments(const Tensor& x, const Tensor& w_up, const Tensor& w_down) {
  for (const auto& [name, tensor] : {std::pair("x", x), {"w_up", w_up}, {"w_down", w_down}}) {
    detail::check_like(kOp, name, tensor, DType::bf16, x.device());
  }
  detail::check_ndim(kOp, "w_down", w_down, 2);
  detail::check_shape(kOp, "w_up", w_up, {2 * w_down.dim(1), x.dim(-1)});
  detail::check_shape(kOp, "w_down", w_down, {x.dim(-1), w_down.dim(1)});
}

// saves: gate_up and the weights, and transposes in FP8: of x (or its recipe) and, if it is kept,
// of swiglu(gate_up)
Variable mlp_in_fp8(const Variable& x_in, const Variable& w_up_in, const Variable& w_down_in,
                    ActivationOutput output, const std::shared_ptr<HostStash>& stash) {
  const RangeScope range(kOp);
  detail::check_ndim(kOp, "x", x_in.value(), 1);
  const Tensor &w_up = w_up_in.value(), &w_down = w_down_in.value();
  check_arguments(x_in.value(), w_up, w_down);
  const Tensor x = detail::as_rows(x_in.value());
  const int64_t N = x.dim(0), F = w_down.dim(1);
  const auto empty_bf16 = [device = x.device()](const Shape& shape) {
    return Tensor::empty(shape, DType::bf16, device, kOp);
  };

  detail::SavedTranspose saved_x(x_in, w_up_in);
  const Tensor gate_up = empty_bf16({N, 2 * F});
  detail::fp8_product(gate_up, saved_x.quantize(x), detail::fp8_weight(w_up));
  const bool keeps_h = output == ActivationOutput::kept && detail::will_differentiate(w_down_in);
  const Fp8Pair h = detail::quantize_swiglu(gate_up, {.transpose = keeps_h});
  auto saved = keep({gate_up}, stash);
  const Tensor y = empty_bf16(detail::replace_last(x_in.shape(), w_down.dim(0)));
  detail::fp8_product(detail::as_rows(y), h.matrix, detail::fp8_weight(w_down));

  const auto backward = [saved, saved_x, saved_h = h.transpose, w_up, w_down, N, F, keeps_h,
                         empty_bf16](Gradients& g) mutable {
    Tensor gate_up = std::exchange(saved, nullptr)()[0];
    const bool further = g.needs(0) || g.needs(1), rebuilds_h = g.needs(2) && !keeps_h;
    Fp8Pair dy = detail::quantize(detail::as_rows(g.output()), Fp8Operand::gradient,
                                  {.matrix = further, .transpose = g.needs(2)});
    const auto differentiate_w_down = [&](const Fp8Tensor& turned_h) {
      const auto [dw, add] = g.target(2);
      detail::fp8_product(dw, std::exchange(dy.transpose, {}), turned_h, add);
    };
    // First, to free the operands' memory.
    if (g.needs(2) && keeps_h) differentiate_w_down(std::exchange(saved_h, {}));
    if (!further && rebuilds_h) {
      differentiate_w_down(detail::quantize_swiglu(gate_up, {.matrix = false}).transpose);
    }
    if (!further) return;
    Tensor dh = empty_bf16({N, F});
    detail::fp8_product(dh, std::exchange(dy.matrix, {}), detail::turned_fp8_weight(w_down));
    SwigluGradientInFp8 made = detail::quantize_swiglu_gradient(
        gate_up, dh,
        {.matrix = g.needs(0), .transpose = g.needs(1), .output_transpose = rebuilds_h});
    dh = gate_up = {};  // each is freed after its last use
    if (rebuilds_h) differentiate_w_down(std::exchange(made.output, {}));
    saved_x.differentiate(g, made.gradient, w_up);
  };
  return record(kOp, y, {x_in, w_up_in, w_down_in}, backward);
}

}  // namespace

Variable swiglu_mlp(const Variable& x, const Variable& w_up, const Variable& w_down,
                    ActivationOutput output, const std::shared_ptr<HostStash>& stash) {
  if (detail::multiplies_in_fp8(x.value())) return mlp_in_fp8(x, w_up, w_down, output, stash);
  return linear(swiglu(linear(x, w_up)), w_down);
}

}  // namespace quern
