#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "base/error.h"
#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

Tensor zero_state(const ParameterArena& arena, int64_t count, const char* name, DType dtype) {
  const MemoryTag tag(name, MemoryCategory::optimizer);
  const Tensor buffer = arena.offload() == Offload::none
                            ? Tensor::empty({count}, dtype, tag)
                            : Tensor::empty_on_host({count}, dtype, tag);
  fill(buffer, 0.0);
  return buffer;
}

StateLayout::StateLayout(const ParameterArena& arena, const ParameterFilter& selects)
    : shared(arena.is_shared_out()) {
  const std::vector<ParameterEntry>& all = arena.table().entries();
  for (size_t i = 0; i < all.size() && !all[i].group.frozen; ++i) {
    if (!selects(all[i])) continue;
    for (const NamedSlice& slice : all[i].slices()) slices.push_back(slice);
    // With the zeros behind it, so that what follows is aligned as in the arena.
    const bool last = i + 1 == all.size() || all[i + 1].group.frozen;
    arena.layout().values.for_each_part(
        all[i].begin, last ? arena.trainable() : all[i + 1].begin,
        [&](int64_t begin, int64_t end, int64_t) { places.append(begin, end); });
  }
}

OptimizerBuffer StateLayout::buffer(std::string prefix, const Tensor& data) const {
  OptimizerBuffer buffer{std::move(prefix), data, slices};
  if (shared) {
    buffer.share = places;
  } else {
    for (NamedSlice& slice : buffer.slices) slice.begin = places.of(slice.begin);
  }
  return buffer;
}

Optimizer::Optimizer(ParameterArena& arena, const StepGuard& guard) : arena_(arena), guard_(guard) {
  QUERN_CHECK(arena.grads().defined(),
              "optimizer: the arena was built without gradients (training = false)");
  state_ = Tensor::empty({sizeof(kernels::StepState)}, DType::u8,
                         {"step state", MemoryCategory::optimizer});
  set_progress(0, 0);
  const int64_t bytes = decide(arena.grads().device(), [&](auto stream) {
    return kernels::norm_chunks(arena_.trainable()) * norm_partial_bytes(stream);
  });
  partials_ =
      Tensor::empty({bytes}, DType::u8, {"gradient norm partial sums", MemoryCategory::workspace});
}

Tensor Optimizer::zeros_like_gradients(const char* name) const {
  QUERN_CHECK(!arena_.is_shared_out(), name, ": ranks share out the weights, but this state is of ",
              "all parameters; expected a StateLayout, or parallel = ddp");
  return zero_state(arena_, arena_.trainable(), name);
}

kernels::StepState* Optimizer::state_data() const {
  return static_cast<kernels::StepState*>(state_.raw_data());
}

kernels::StepState Optimizer::state() const {
  kernels::StepState state;
  copy(Tensor::borrow(&state, state_.shape(), DType::u8, kCpu), state_);
  return state;
}

void Optimizer::set_progress(int64_t step, int64_t skipped) {
  kernels::StepState state;
  state.step = step;
  state.skipped = state.skipped_before = skipped;
  state.halt = guard_.halt_on_nonfinite;
  copy(state_, Tensor::borrow(&state, state_.shape(), DType::u8, kCpu));
}

void Optimizer::set_learning_rate(double lr) {
  on_device(state_.device(), [&](auto stream) {
    store_learning_rate(state_data(), static_cast<float>(lr), stream);
  });
}

void Optimizer::step(const Tensor& loss) {
  const RangeScope range(RangeKind::phase, "optimizer");
  arena_.finish_gradients();
  updating_ = true;
  if (guard_.kernels == KernelKind::fused) {
    fused_step(loss);
  } else {
    naive_step(loss);
  }
  updating_ = false;
}

void Optimizer::fused_step(const Tensor& loss) {
  const float* loss_data = loss.defined() ? loss.data<float>() : nullptr;
  on_device(state_.device(), [&](auto stream) {
    const int64_t n = arena_.trainable();
    if (fills_norm_) {
      sum_squares(partials_.raw_data(), arena_.grads().data<float>(), n, stream);
    }
    finish_norm(state_data(), partials_.raw_data(), kernels::norm_chunks(n), 1.0f,
                static_cast<float>(guard_.clip), loss_data, stream);
  });
  fused_update();
  arena_.refresh_vectors();
  on_device(state_.device(), [&](auto stream) { finish_step(state_data(), stream); });
}

// The naive twin of the frame: the norm by a small op, the scalars on the host.
void Optimizer::naive_step(const Tensor& loss) {
  const NoGrad no_grad;
  kernels::StepState now = state();
  const double norm = std::sqrt(sum_squares(arena_.grads(), 0).value().item());
  now.norm = static_cast<float>(norm);
  const bool halted = now.halt && now.skipped > now.skipped_before;
  now.finite = !halted && std::isfinite(norm) && (!loss.defined() || std::isfinite(loss.item()));
  const double clip = guard_.clip > 0.0 ? std::min(1.0, guard_.clip / (norm + 1e-6)) : 1.0;
  now.clip = static_cast<float>(clip);
  if (now.finite) {
    now.step += 1;
    const Tensor values = arena_.exact_values();
    naive_update(values, clip, now);
    arena_.set_exact_values(values);
  } else {
    now.skipped += 1;
  }
  copy(state_, Tensor::borrow(&now, state_.shape(), DType::u8, kCpu));
}

}  // namespace quern
