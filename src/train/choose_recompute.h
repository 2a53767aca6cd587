// The choice of `recompute = auto`.
#pragma once

#include "train/memory_prediction.h"

namespace quern {

// Resolves `auto` on a GPU with `memory` bytes for the run: none if its predicted step needs at
// most a third of them, else swiglu if its step needs at most half, else norms.
Recompute decided_recompute(const Config& config, const MemoryTarget& target, int64_t memory);

// config.compute for a training step on the current Context's device, with `auto` replaced by the
// choice above, or by norms without a GPU. The computed bits do not depend on the choice.
ModelOptions decided_options(const Config& config);

// The choice for a run: that of decided_options, but blocks if `auto` would otherwise exceed the
// device's memory and blocks fit.
Recompute recompute_of_run(const Config& config);

}  // namespace quern
