// What `recompute = auto` stands for.
#pragma once

#include "train/memory_prediction.h"

namespace quern {

// `auto` on a GPU where the run may use `memory` bytes: swiglu where the step is then predicted to
// take at most half of them, else norms; none, where that takes at most a third of them and an
// eighth more than swiglu.
Recompute decided_recompute(const Config& config, const MemoryTarget& target, int64_t memory);

// config.compute for a training step on the current Context's device, `auto` decided: as above, or
// norms without a GPU. The numbers computed are the same bits either way.
ModelOptions decided_options(const Config& config);

}  // namespace quern
