#include "optim/adamw.h"

#include <vector>

#include "base/error.h"
#include "tensor/visit.h"

namespace quern {

namespace {

Tensor bytes(int64_t count, const char* name) {
  return Tensor::empty({count}, DType::u8, name);
}

template <class T>
Tensor upload(const std::vector<T>& values, const char* name) {
  const auto count = static_cast<int64_t>(values.size() * sizeof(T));
  const Tensor out = bytes(count, name);
  copy(out, Tensor::borrow(const_cast<T*>(values.data()), {count}, DType::u8, kCpu));
  return out;
}

// Neighbouring parameters with one treatment are one range; the zero padding between them changes
// nothing.
std::vector<kernels::AdamWRange> make_ranges(const ParameterArena& arena, double weight_decay) {
  std::vector<kernels::AdamWRange> ranges;
  for (const Parameter* parameter : arena.parameters()) {
    const ParameterGroup& group = parameter->group;
    if (group.frozen) continue;
    const auto lr_scale = static_cast<float>(group.lr_scale);
    const auto decay = static_cast<float>(group.decay ? weight_decay : 0.0);
    const int64_t end = parameter->begin() + parameter->numel();
    if (!ranges.empty() && ranges.back().lr_scale == lr_scale && ranges.back().decay == decay) {
      ranges.back().count = end - ranges.back().begin;
    } else {
      ranges.push_back({parameter->begin(), parameter->numel(), lr_scale, decay});
    }
  }
  return ranges;
}

}  // namespace

AdamW::AdamW(ParameterArena& arena, const AdamWOptions& options)
    : arena_(arena), options_(options) {
  QUERN_CHECK(arena.grads().defined(),
              "AdamW: the arena was built without gradients (training = false)");
  state_ = bytes(sizeof(kernels::StepState), "step state");
  set_progress(0, 0);
  runs_ = make_ranges(arena, options.weight_decay);
  ranges_ = upload(runs_, "adamw ranges");
  on_device(arena.grads().device(), [&](auto stream) {
    scratch_ = bytes(global_norm_scratch(arena_.trainable(), stream), "gradient norm scratch");
  });
}

kernels::StepState* AdamW::state_data() const {
  return static_cast<kernels::StepState*>(state_.raw_data());
}

kernels::StepState AdamW::state() const {
  kernels::StepState state;
  copy(Tensor::borrow(&state, state_.shape(), DType::u8, kCpu), state_);
  return state;
}

void AdamW::set_progress(int64_t step, int64_t skipped) {
  kernels::StepState state;
  state.step = step;
  state.skipped = skipped;
  state.halt = options_.halt_on_nonfinite;
  copy(state_, Tensor::borrow(&state, state_.shape(), DType::u8, kCpu));
}

void AdamW::set_learning_rate(double lr) {
  on_device(state_.device(), [&](auto stream) {
    store_learning_rate(state_data(), static_cast<float>(lr), stream);
  });
}

void AdamW::step(const Tensor& loss) {
  const RangeScope range(RangeKind::phase, "optimizer");
  arena_.finish_gradients();
  if (options_.kernels == KernelKind::fused) return fused_step(loss);
  naive_step(loss);
}

void AdamW::fused_step(const Tensor& loss) {
  const kernels::AdamWHyper hyper{static_cast<float>(options_.beta1),
                                  static_cast<float>(options_.beta2),
                                  static_cast<float>(options_.eps)};
  const float* loss_data = loss.defined() ? loss.data<float>() : nullptr;
  bfloat16* copies = arena_.copies().defined() ? arena_.copies().data<bfloat16>() : nullptr;
  on_device(state_.device(), [&](auto stream) {
    const float* grads = arena_.grads().data<float>();
    global_norm(state_data(), grads, arena_.trainable(), 1.0f, static_cast<float>(options_.clip),
                loss_data, scratch_.raw_data(), stream);
    adamw(arena_.values().data<float>(), arena_.moment1().data<float>(),
          arena_.moment2().data<float>(), copies, grads,
          static_cast<const kernels::AdamWRange*>(ranges_.raw_data()),
          static_cast<int64_t>(runs_.size()), arena_.trainable(), hyper, state_data(), stream);
    finish_step(state_data(), stream);
  });
}

}  // namespace quern
