// The choice of `recompute = auto`.
#pragma once

#include "train/memory_prediction.h"

namespace quern {

// `auto` on a GPU with `memory` bytes for the run. norms, unless the step with swiglu is predicted
// to take at most half of them: then swiglu, or none if that takes at most a third of them.
Recompute decided_recompute(const Config& config, const MemoryTarget& target, int64_t memory);

// config.compute for a training step on the current Context's device, with `auto` replaced by the
// choice above, or by norms without a GPU. The computed bits do not depend on the choice.
ModelOptions decided_options(const Config& config);

// The choice for a run: that of decided_options or, where `auto` would need more than the device's
// memory by it, blocks if these fit.
Recompute recompute_of_run(const Config& config);

}  // namespace quern
