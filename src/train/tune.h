// `quern tune`: which cuBLASLt algorithm is the fastest for each matrix product of a training step.
#pragma once

#include <string>

#include "train/config.h"

namespace quern {

struct TuneResult {
  int64_t products = 0;  // in the table
  int64_t measured = 0;  // of them, timed now
  double seconds = 0.0;
};

// Runs one training step and one evaluation of the configuration's model, batch and context on the
// current Context, timing every proposed algorithm of each product that the table at `path` does
// not have, and writes the table there. Throws UsageError on the CPU, which has no choice to make,
// or when the table at `path` was made on another GPU or library version.
TuneResult tune_gemms(const Config& config, const std::string& path);

}  // namespace quern
