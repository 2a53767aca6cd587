// `quern tune`: finds the fastest cuBLASLt algorithm for each matrix product of a training step.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "tensor/gemm_table.h"

namespace quern {

struct TuneResult {
  int64_t products = 0;                   // in the table
  std::vector<MeasuredProduct> measured;  // those timed by this call
  double seconds = 0.0;
};

// Runs one training step and one evaluation of the configuration's model, batch and context on the
// current Context, times every proposed algorithm of each product missing from the table at `path`,
// and writes the table there. A product of 100 us or more takes three to five seconds, most of it
// under sustained load (kernels/cuda/gemm/gemm_tuning.h); a shorter one less. Throws UsageError on
// the CPU, which has no such algorithms, or when the table at `path` was made on another GPU or
// library version.
TuneResult tune_gemms(const Config& config, const std::string& path);

}  // namespace quern
