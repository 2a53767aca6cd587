// One run, as shown in a report, and the data of its charts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "report/metrics_reader.h"
#include "run/run_folder.h"

namespace quern {

struct Sample {
  int64_t step = 0;
  std::string text;
};

struct ReportRun {
  std::string name;  // the folder's, or as much of its path as makes it unique
  std::filesystem::path folder;
  std::optional<Config> config;  // empty: it could not be read, and a warning says why
  RunMetrics metrics;
  std::vector<Sample> samples;
  std::vector<std::string> warnings;
};

// The numbers at the head of the page. NaN or 0: unknown.
struct ReportSummary {
  std::string status;  // "done", "stopped at step 120 of 2000", "at step 120 of 2000"
  int64_t step = 0, steps = 0;
  double loss = 0.0;  // the latest one
  double best_val_loss = 0.0;
  int64_t best_step = 0;
  double tokens = 0.0;
  double train_seconds = 0.0;  // spent in steps
  double wall_seconds = 0.0;   // of all processes, up to their last lines
  double tokens_per_s = 0.0;   // medians
  double mfu = 0.0;
  int64_t memory_bytes = 0, skipped = 0, parameters = 0;
  std::string device;
};

// Throws when the folder is no run folder or its metrics cannot be read.
ReportRun read_report_run(const std::filesystem::path& folder);
ReportSummary summarize(const ReportRun& run);

// The samples of a samples.txt: "--- step N", then the text.
std::vector<Sample> parse_samples(const std::string& text);

// The ends (exclusive) of the buckets of n records, in order. Up to `most` records have one bucket
// each. Beyond, there are about `most` buckets: half of them even on a linear axis, half on a
// logarithmic one. The first and the last record keep buckets of their own.
std::vector<size_t> bucket_ends(size_t n, size_t most);

struct Series {
  std::string name;               // as in metrics.jsonl
  std::vector<double> mean;       // per bucket; NaN: unknown
  std::vector<double> low, high;  // range of the bucket's records; empty when each has one record
};

// A run's numbers, thinned so that a page with a million steps still opens.
struct ChartData {
  std::vector<int64_t> step;    // the last step of each bucket
  std::vector<double> tokens;   // trained on up to that step
  std::vector<double> seconds;  // of training up to that step: steps times their mean duration
  std::vector<Series> series;
};

ChartData chart_data(const std::vector<StepMetrics>& steps, size_t most);

}  // namespace quern
