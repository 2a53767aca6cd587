#include "train/recompute.h"

#include "nn/memory_estimate.h"
#include "tensor/context.h"
#include "train/memory_report.h"

namespace quern {

ModelOptions decided_options(const Config& config) {
  ModelOptions options = config.compute;
  if (options.recompute != Recompute::automatic) return options;
  options.recompute = Recompute::norms;
  if (!Context::current().device().is_cuda()) return options;
  ModelOptions faster = options;
  faster.recompute = Recompute::swiglu;
  const PeakEstimate peak = predict_peak(config.model, faster, config.train.batch,
                                         config.model.context, MemoryPass::step, current_target());
  return 2 * peak.total() <= memory_capacity(config).bytes ? faster : options;
}

}  // namespace quern
