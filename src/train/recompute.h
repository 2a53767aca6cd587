// What `recompute = auto` stands for.
#pragma once

#include "train/config.h"

namespace quern {

// config.compute for a training step on the current Context's device, `auto` decided: norms, or
// swiglu on a GPU where the step is then predicted to take at most half of the memory that the run
// may use. The numbers computed are the same bits either way.
ModelOptions decided_options(const Config& config);

}  // namespace quern
