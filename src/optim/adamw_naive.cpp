// The naive twin of clipping and AdamW: one small op after another, parameter by parameter, with
// the scalars on the host. What the fused step is tested and benchmarked against.
#include <cmath>

#include "autograd/ops/binary.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "optim/adamw.h"

namespace quern {

namespace {

double gradient_norm(const ParameterArena& arena) {
  double sum_of_squares = 0.0;
  for (const Parameter* parameter : arena.parameters()) {
    if (parameter->group.frozen) continue;
    sum_of_squares += sum(pow(parameter->grad(), 2.0)).value().item();
  }
  return std::sqrt(sum_of_squares);
}

}  // namespace

void AdamW::naive_step(const Tensor& loss) {
  const NoGrad no_grad;
  kernels::StepState now = state();
  const double norm = gradient_norm(arena_);
  now.norm = static_cast<float>(norm);
  const bool halted = now.halt && now.skipped > 0;
  now.finite = !halted && std::isfinite(norm) && (!loss.defined() || std::isfinite(loss.item()));
  const double clip = options_.clip > 0.0 ? std::min(1.0, options_.clip / (norm + 1e-6)) : 1.0;
  now.clip = static_cast<float>(clip);
  if (now.finite) {
    now.step += 1;
    for (const Parameter* parameter : arena_.parameters()) {
      if (!parameter->group.frozen) naive_update(*parameter, clip, now);
    }
    arena_.refresh_copies();
  } else {
    now.skipped += 1;
  }
  copy(state_, Tensor::borrow(&now, state_.shape(), DType::u8, kCpu));
}

void AdamW::naive_update(const Parameter& parameter, double clip, const kernels::StepState& state) {
  const NamedSlice here{parameter.name(), parameter.shape(), parameter.begin()};
  const Tensor m = arena_.slice(arena_.moment1(), here), v = arena_.slice(arena_.moment2(), here);
  const Tensor& p = parameter.value();
  const double beta1 = options_.beta1, beta2 = options_.beta2, t = static_cast<double>(state.step);
  const double lr = state.lr * parameter.group.lr_scale;
  const double decay = parameter.group.decay ? options_.weight_decay : 0.0;

  const Variable g = scale(parameter.grad(), clip);
  copy(m, add(scale(m, beta1), scale(g, 1.0 - beta1)).value());
  copy(v, add(scale(v, beta2), scale(pow(g, 2.0), 1.0 - beta2)).value());
  const Variable m_hat = scale(m, 1.0 / (1.0 - std::pow(beta1, t)));
  const Variable v_hat = scale(v, 1.0 / (1.0 - std::pow(beta2, t)));
  const Variable update = div(m_hat, scale(pow(v_hat, 0.5), 1.0, options_.eps));
  copy(p, sub(scale(p, 1.0 - lr * decay), scale(update, lr)).value());
}

}  // namespace quern
