// Reads metrics.jsonl, whole or while a run writes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "run/metrics.h"

namespace quern {

struct Validation {
  int64_t step = 0;
  double loss = 0.0;
  double time = 0.0;  // as below
};

// What a metrics file says. A number that it does not give is NaN (memory and skipped: 0; tokens:
// 0; time: 0), for files of older versions, and for losses that were not finite.
struct RunMetrics {
  struct Process {  // from each process's first step
    FirstStep first;
    double time = 0.0;
  };
  std::vector<StepMetrics> steps;
  std::vector<Validation> validations;
  std::vector<Process> processes;
  std::string ended;                  // how, when the last line says so; else empty
  double last_time = 0.0;             // of the newest line
  std::vector<std::string> warnings;  // lines that are no metrics, and are left out

  bool empty() const { return steps.empty() && validations.empty(); }
};

// Follows a file. A run that is resumed writes the file anew; then reading begins anew too.
class MetricsReader {
 public:
  explicit MetricsReader(std::filesystem::path path) : path_(std::move(path)) {}

  // Reads on to the last whole line. Returns whether there was anything new; a file that is not
  // there has nothing. Throws when it cannot be read.
  bool update();
  // What follows the last line end is a line cut in the middle: taken when whole, else a warning.
  void finish();

  const RunMetrics& metrics() const { return metrics_; }

 private:
  void take_lines();
  void take(const std::string& line);

  std::filesystem::path path_;
  RunMetrics metrics_;
  uint64_t inode_ = 0;
  uint64_t offset_ = 0;
  int64_t lines_ = 0;
  std::string pending_;  // begun, not ended
};

// The whole file. Throws when it is missing or cannot be read.
RunMetrics read_metrics(const std::filesystem::path& path);

}  // namespace quern
