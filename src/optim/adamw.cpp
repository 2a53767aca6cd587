#include "optim/adamw.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/visit.h"

namespace quern {

AdamWMoments::AdamWMoments(ParameterArena& arena, const AdamWOptions& options,
                           const ParameterFilter& selects)
    : arena_(arena), options_(options) {
  int64_t left_out = 0;  // elements
  bool adjacent = false;
  const std::vector<ParameterEntry>& all = arena.table().entries();
  for (size_t i = 0; i < all.size() && !all[i].group.frozen; ++i) {
    const ParameterEntry& entry = all[i];
    if (!selects(entry)) {
      const bool last = i + 1 == all.size() || all[i + 1].group.frozen;
      left_out += (last ? arena.trainable() : all[i + 1].begin) - entry.begin;
      adjacent = false;
      continue;
    }
    for (NamedSlice slice : entry.slices()) {
      slice.begin -= left_out;
      slices_.push_back(slice);
    }
    // Neighbours with one treatment form one range; the zero padding between them has no effect.
    const auto lr_scale = static_cast<float>(entry.group.lr_scale);
    const auto decay = static_cast<float>(entry.group.decay ? options.weight_decay : 0.0);
    if (adjacent && runs_.back().lr_scale == lr_scale && runs_.back().decay == decay) {
      runs_.back().count = entry.end() - runs_.back().begin;
    } else {
      runs_.push_back({entry.begin, entry.numel(), lr_scale, decay, -left_out});
    }
    adjacent = true;
  }
  const bool shared = arena.is_shared_out();
  QUERN_CHECK(!shared || left_out == 0, "adamw: found a filter and a rank's share, expected one");
  if (shared) {
    share_ = arena.layout().values.until(arena.trainable());
    cut_runs();
  }
  const int64_t count = shared ? share_->size() : arena.trainable() - left_out;
  ranges_ = upload_table(runs_, "adamw ranges");
  for (Tensor* moment : {&first_, &second_}) {
    const char* name = moment == &first_ ? "adam first moment" : "adam second moment";
    const bool half = options.moments == MomentType::bf16;
    *moment = zero_state(arena, count, name, half ? DType::bf16 : DType::f32);
  }
}

// Leaves the parts of the runs that the arena has, and places them there.
void AdamWMoments::cut_runs() {
  const ArenaLayout& layout = arena_.layout();
  std::vector<kernels::AdamWRange> cut;
  for (const kernels::AdamWRange& run : runs_) {
    layout.values.for_each_part(run.begin, run.begin + run.count,
                                [&](int64_t begin, int64_t end, int64_t place) {
                                  cut.push_back({.begin = place,
                                                 .count = end - begin,
                                                 .lr_scale = run.lr_scale,
                                                 .decay = run.decay,
                                                 .grad_shift = layout.sums.of(begin) - place,
                                                 .arena_shift = begin - place});
                                });
  }
  runs_ = std::move(cut);
}

std::vector<OptimizerBuffer> AdamWMoments::buffers() const {
  return {{"moment1.", first_, slices_, share_}, {"moment2.", second_, slices_, share_}};
}

void AdamWMoments::fused_update(const kernels::StepState* state) {
  const kernels::AdamWHyper hyper{static_cast<float>(options_.beta1),
                                  static_cast<float>(options_.beta2),
                                  static_cast<float>(options_.eps), options_.seed};
  const Tensor copies = arena_.is_shared_out() ? Tensor() : arena_.copies();  // or gathered later
  const auto update = [&](auto* first, auto* second) {
    on_device(ranges_.device(), [&](auto stream) {
      adamw(arena_.values().data<float>(), first, second,
            copies.defined() ? copies.data<bfloat16>() : nullptr, arena_.sums().data<float>(),
            static_cast<const kernels::AdamWRange*>(ranges_.raw_data()),
            static_cast<int64_t>(runs_.size()), arena_.values().numel(), hyper, state, stream);
    });
  };
  if (first_.dtype() == DType::bf16) {
    update(first_.data<bfloat16>(), second_.data<bfloat16>());
  } else {
    update(first_.data<float>(), second_.data<float>());
  }
}

void AdamWMoments::naive_update(double clip, const kernels::StepState& now) {
  const Tensor &values = arena_.values(), &grads = arena_.sums();
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
