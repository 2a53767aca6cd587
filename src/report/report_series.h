// What a chart is drawn from: the numbers of a run, thinned so that a million steps still open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/metrics_reader.h"

namespace quern {

// Where the buckets of n records end (exclusive), in order: one record a bucket up to `most`
// records; beyond, about `most` buckets, half of them even on a linear axis and half on a
// logarithmic one, and the first and last record alone.
std::vector<size_t> bucket_ends(size_t n, size_t most);

struct Series {
  std::string name;               // as in metrics.jsonl
  std::vector<double> mean;       // a bucket; NaN: nothing known
  std::vector<double> low, high;  // of the bucket's records; empty when each holds one
};

struct ChartData {
  std::vector<int64_t> step;    // the last of each bucket
  std::vector<double> tokens;   // trained on by then
  std::vector<double> seconds;  // of training by then: steps times their mean duration
  std::vector<Series> series;
};

// tokens_per_step: for files that do not give the tokens.
ChartData chart_data(const std::vector<StepMetrics>& steps, double tokens_per_step, size_t most);

}  // namespace quern
