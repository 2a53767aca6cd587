// The data of a chart: a run's numbers, thinned so that a page with a million steps still opens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/metrics_reader.h"

namespace quern {

// The ends (exclusive) of the buckets of n records, in order. Up to `most` records have one bucket
// each. Beyond, there are about `most` buckets: half of them even on a linear axis, half on a
// logarithmic one. The first and the last record keep buckets of their own.
std::vector<size_t> bucket_ends(size_t n, size_t most);

struct Series {
  std::string name;               // as in metrics.jsonl
  std::vector<double> mean;       // per bucket; NaN: unknown
  std::vector<double> low, high;  // range of the bucket's records; empty when each has one record
};

struct ChartData {
  std::vector<int64_t> step;    // the last step of each bucket
  std::vector<double> tokens;   // trained on up to that step
  std::vector<double> seconds;  // of training up to that step: steps times their mean duration
  std::vector<Series> series;
};

// tokens_per_step: used for files without token counts.
ChartData chart_data(const std::vector<StepMetrics>& steps, double tokens_per_step, size_t most);

}  // namespace quern
