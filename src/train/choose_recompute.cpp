#include "train/choose_recompute.h"

#include "tensor/context.h"
#include "train/memory_report.h"

namespace quern {

Recompute decided_recompute(const Config& config, const MemoryTarget& target, int64_t memory) {
  const auto peak = [&](Recompute recompute) {
    Config changed = config;
    changed.compute.recompute = recompute;
    return predict_peak(changed, MemoryPass::step, target).total();
  };
  if (3 * peak(Recompute::none) <= memory) return Recompute::none;
  return 2 * peak(Recompute::swiglu) <= memory ? Recompute::swiglu : Recompute::norms;
}

ModelOptions decided_options(const Config& config) {
  ModelOptions options = config.compute;
  if (options.recompute != Recompute::automatic) return options;
  const bool gpu = Context::current().device().is_cuda();
  options.recompute =
      gpu ? decided_recompute(config, current_target(), memory_capacity(config).bytes)
          : Recompute::norms;
  return options;
}

Recompute recompute_of_run(const Config& config) {
  const Recompute decided = decided_options(config).recompute;
  const MemoryCapacity memory = memory_capacity(config);
  // The choices before norms leave at least half of the memory.
  if (config.compute.recompute != Recompute::automatic || decided != Recompute::norms ||
      memory.bytes == 0) {
    return decided;
  }
  Config changed = config;
  changed.compute.recompute = Recompute::norms;
  if (predict_peak(changed, MemoryPass::step, current_target()).total() <= memory.bytes) {
    return Recompute::norms;
  }
  changed.compute.recompute = Recompute::blocks;
  return step_fits(changed, memory) ? Recompute::blocks : Recompute::norms;
}

}  // namespace quern
