// A StepBenchResult as people and programs read it.
#pragma once

#include <string>

#include "bench/gemm_rate.h"
#include "bench/step.h"

namespace quern {

std::string step_table(const StepBenchResult& result);

// One line of JSON with the keys of benchmarks/peers/torch_lm.py. `peer` names the program:
// "quern-0.1.0". A phase that ran out of memory has the value "OOM".
std::string step_json(const StepBenchResult& result, const std::string& peer);

// The product's rates one by one, and the step's rate beside theirs.
std::string gemm_table(const GemmRates& rates, double step_seconds);

}  // namespace quern
