#include "optim/adamw.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "tensor/visit.h"

namespace quern {

AdamWMoments::AdamWMoments(ParameterArena& arena, const AdamWOptions& options,
                           const ParameterFilter& selects, const OptimizerShare& share)
    : arena_(arena), options_(options), share_(share) {
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
  QUERN_CHECK(!share_ || left_out == 0, "adamw: found a filter and a share, expected one");
  int64_t count = arena.trainable() - left_out;
  if (share_) {
    cut_runs();
    count = 0;
    for (const ParameterTable::Range& range : *share_) count += range.end - range.begin;
  }
  ranges_ = upload_table(runs_, "adamw ranges");
  for (Tensor* moment : {&first_, &second_}) {
    const char* name = moment == &first_ ? "adam first moment" : "adam second moment";
    *moment = Tensor::empty({count}, DType::f32, {name, MemoryCategory::optimizer});
    fill(*moment, 0.0);
  }
}

// Leaves the parts of the runs that lie in the share.
void AdamWMoments::cut_runs() {
  std::vector<kernels::AdamWRange> cut;
  int64_t moments = 0;  // of the ranges so far
  for (const auto& [begin, end] : *share_) {
    for (kernels::AdamWRange run : runs_) {
      const int64_t last = std::min(run.begin + run.count, end);
      run.begin = std::max(run.begin, begin);
      run.count = last - run.begin;
      run.shift = moments - begin;
      if (run.count > 0) cut.push_back(run);
    }
    moments += end - begin;
  }
  runs_ = std::move(cut);
}

std::vector<OptimizerBuffer> AdamWMoments::buffers() const {
  return {{"moment1.", first_, slices_, share_}, {"moment2.", second_, slices_, share_}};
}

void AdamWMoments::fused_update(const kernels::StepState* state) {
  const kernels::AdamWHyper hyper{static_cast<float>(options_.beta1),
                                  static_cast<float>(options_.beta2),
                                  static_cast<float>(options_.eps)};
  const Tensor& copies = arena_.copies();
  on_device(ranges_.device(), [&](auto stream) {
    adamw(arena_.values().data<float>(), first_.data<float>(), second_.data<float>(),
          copies.defined() ? copies.data<bfloat16>() : nullptr, arena_.grads().data<float>(),
          static_cast<const kernels::AdamWRange*>(ranges_.raw_data()),
          static_cast<int64_t>(runs_.size()), arena_.trainable(), hyper, state, stream);
  });
}

void AdamWMoments::naive_update(double clip, const kernels::StepState& now) {
  const Tensor &values = arena_.values(), &grads = arena_.grads();
  if (first_.numel() == arena_.trainable()) {  // no parameter is left out: the fewest ops
    return naive_adamw({values, first_, second_, grads}, runs_, options_, clip, now);
  }
  for (kernels::AdamWRange run : runs_) {
    const int64_t begin = std::exchange(run.begin, 0), end = begin + run.count;
    const int64_t from = begin + std::exchange(run.shift, 0), to = from + run.count;
    const AdamWTensors tensors{values.slice(0, begin, end), first_.slice(0, from, to),
                               second_.slice(0, from, to), grads.slice(0, begin, end)};
    naive_adamw(tensors, {&run, 1}, options_, clip, now);
  }
}

AdamW::AdamW(ParameterArena& arena, const AdamWOptions& options, const OptimizerShare& share)
    : Optimizer(arena, options.guard(), share),
      moments_(
          arena, options, [](const ParameterEntry&) { return true; }, share) {}

}  // namespace quern
