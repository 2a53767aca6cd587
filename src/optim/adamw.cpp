#include "optim/adamw.h"

#include "tensor/factory.h"
#include "tensor/visit.h"

namespace quern {

AdamWMoments::AdamWMoments(ParameterArena& arena, const AdamWOptions& options,
                           const ParameterFilter& selects)
    : arena_(arena), options_(options), layout_(arena, selects) {
  // Neighbours with one treatment form one run; the zero padding between them has no effect.
  const auto alike = [](const ParameterEntry& a, const ParameterEntry& b) {
    return a.group.lr_scale == b.group.lr_scale && a.group.decay == b.group.decay;
  };
  const std::vector<ParameterEntry>& all = arena.table().entries();
  const auto takes = [&](size_t i) {
    return i < all.size() && !all[i].group.frozen && selects(all[i]);
  };
  for (size_t i = 0; i < all.size(); ++i) {
    if (!takes(i)) continue;
    const size_t first = i;
    while (takes(i + 1) && alike(all[first], all[i + 1])) ++i;
    add_run(all[first].begin, all[i].end(), all[first].group);
  }
  ranges_ = upload_table(runs_, {"adamw ranges", MemoryCategory::optimizer});
  for (Tensor* moment : {&first_, &second_}) {
    const char* name = moment == &first_ ? "adam first moment" : "adam second moment";
    const bool half = options.moments == MomentType::bf16;
    *moment = zero_state(arena, layout_.size(), name, half ? DType::bf16 : DType::f32);
  }
}

// The parts of a run that the arena has, where they lie there.
void AdamWMoments::add_run(int64_t begin, int64_t end, const ParameterGroup& group) {
  const ArenaLayout& arena = arena_.layout();
  arena.values.for_each_part(begin, end, [&](int64_t from, int64_t to, int64_t place) {
    runs_.push_back({.begin = place,
                     .count = to - from,
                     .lr_scale = static_cast<float>(group.lr_scale),
                     .decay = static_cast<float>(group.decay ? options_.weight_decay : 0.0),
                     .shift = layout_.places.of(from) - place,
                     .grad_shift = arena.sums.of(from) - place,
                     .arena_shift = from - place});
  });
}

std::vector<OptimizerBuffer> AdamWMoments::buffers() const {
  return {layout_.buffer("moment1.", first_), layout_.buffer("moment2.", second_)};
}

void AdamWMoments::fused_update(const kernels::StepState* state) {
  const kernels::AdamWHyper hyper{static_cast<float>(options_.beta1),
                                  static_cast<float>(options_.beta2),
                                  static_cast<float>(options_.eps), options_.seed};
  const auto update = [&](auto* first, auto* second) {
    on_device(ranges_.device(), [&](auto stream) {
      adamw(arena_.weight_arrays(), first, second, arena_.sums().data<float>(),
            static_cast<const kernels::AdamWRange*>(ranges_.raw_data()),
            static_cast<int64_t>(runs_.size()), arena_.layout().values.size(), hyper, state,
            stream);
    });
  };
  if (first_.dtype() == DType::bf16) {
    update(first_.data<bfloat16>(), second_.data<bfloat16>());
  } else {
    update(first_.data<float>(), second_.data<float>());
  }
}

void AdamWMoments::naive_update(const Tensor& values, double clip, const kernels::StepState& now) {
  const Tensor& grads = arena_.sums();
  if (first_.numel() == grads.numel() && !arena_.is_shared_out()) {
    // No parameter is left out: the fewest ops.
    return naive_adamw({values, first_, second_, grads}, runs_, options_, clip, now);
  }
  for (kernels::AdamWRange run : runs_) {
    const auto part = [&](const Tensor& buffer, int64_t shift) {
      return buffer.slice(0, run.begin + shift, run.begin + shift + run.count);
    };
    const AdamWTensors tensors{part(values, 0), part(first_, run.shift), part(second_, run.shift),
                               part(grads, run.grad_shift)};
    run.arena_shift += run.begin;
    run.begin = 0;
    naive_adamw(tensors, {&run, 1}, options_, clip, now);
  }
}

AdamW::AdamW(ParameterArena& arena, const AdamWOptions& options)
    : Optimizer(arena, options.guard()),
      moments_(arena, options, [](const ParameterEntry&) { return true; }) {}

}  // namespace quern
