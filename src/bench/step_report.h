// A StepBenchResult as people and programs read it.
#pragma once

#include <set>
#include <string>

#include "bench/gemm_rate.h"
#include "bench/step.h"
#include "bench/table.h"

namespace quern {

// A single configuration, to people: each phase with its parts.
std::string step_table(const StepBenchResult& result);

// One line of JSON with the keys of benchmarks/peers/torch_lm.py and more, without a newline.
// `peer` names the program: "quern-0.1.0". A phase that ran out of memory has the value "OOM".
std::string step_json(const StepBenchResult& result, const std::string& peer);

// Configurations beside each other, a row a phase of each. To people the settings (size, ctx,
// batch, precision, attention, kernels) that are not in `varying` have no column. Rows of JSON are
// step_json's, one a configuration.
class StepRows {
 public:
  StepRows(TableFormat format, const std::set<std::string>& varying, std::string peer);
  // What all configurations share, and the headings; `first` is any of them.
  std::string head(const Config& first, const std::string& device) const;
  std::string rows(const StepBenchResult& result) const;

 private:
  std::set<std::string> varying_;
  std::string peer_;
  Table table_;
};

// The product's rates one by one, and the step's rate beside theirs.
std::string gemm_table(const GemmRates& rates, double step_seconds);

}  // namespace quern
