#include "train/memory_prediction.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "autograd/tape.h"
#include "base/error.h"
#include "dist/silent_group.h"
#include "profile/memory/memory_recorder.h"
#include "run/make_optimizer.h"
#include "train/training_step.h"

namespace quern {

MemoryTarget hopper_target() {
  return {Device{DeviceType::cuda, 0}, kernels::cuda::kHopper};
}

MemoryTarget current_target() {
  const Context& context = Context::current();
  return {context.device(), context.traits()};
}

int64_t PeakEstimate::state() const {
  return of(MemoryCategory::parameters) + of(MemoryCategory::gradients) +
         of(MemoryCategory::optimizer);
}

int64_t PeakEstimate::total() const {
  return std::accumulate(by_category.begin(), by_category.end(), int64_t{0});
}

int64_t offloaded_bytes() {
  const Context& context = Context::current();
  return context.device().is_cuda() ? context.offload_allocator()->stats().peak_allocated : 0;
}

MemoryTrace trace_memory(const Config& config, MemoryPass pass) {
  constexpr int kRuns = 2;
  const MemoryRecorder recorder(std::numeric_limits<size_t>::max());
  const bool training = pass == MemoryPass::step;
  SilentGroup others(0, static_cast<int>(config.parallel.ranks));
  Communicator* const ranks = training && config.parallel.ranks > 1 ? &others : nullptr;
  ModelInstance instance(config.model, config.compute, config.model.init, training,
                         static_cast<uint64_t>(config.train.seed), layout_for(config, ranks));
  const auto [tokens, targets] = random_batch(config.model, config.train.batch);
  if (!training) {
    const NoGrad no_grad;
    for (int i = 0; i < kRuns; ++i) {
      const RangeScope range(RangeKind::phase, "forward");
      instance.model.loss(tokens, targets);
    }
    return recorder.trace();
  }
  const auto shards = make_shards(instance.arena, ranks, config);
  const auto optimizer = make_optimizer(instance.arena, config, ranks);
  optimizer->set_learning_rate(config.optimizer.lr);
  TrainingStep step(instance, *optimizer, false, ranks, exchange_of(config.compute), shards.get());
  // More micro-batches than two need no more memory.
  const MicroBatch all{0, std::min<int64_t>(config.train.accumulate, 2)};
  for (int i = 0; i < kRuns; ++i) {
    for (MicroBatch part = all; part.index < part.count; ++part.index) {
      step.run(tokens, targets, part);
    }
  }
  Context::current().synchronize();
  return recorder.trace();
}

PeakEstimate predict_peak(const Config& config, MemoryPass pass, const MemoryTarget& target) {
  QUERN_CHECK(config.train.batch >= 1 && config.model.context >= 1, "predict_peak: batch is ",
              config.train.batch, " and ctx is ", config.model.context, ", expected at least 1");
  return run_dry(target, config.compute, [&] {
    const MemoryTrace trace = trace_memory(config, pass);
    return PeakEstimate{peak_of(trace).by_category, offloaded_bytes()};
  });
}

}  // namespace quern
