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
  double time = 0.0;  // seconds since 1970; 0: missing
};

// The contents of a metrics file. Missing numbers are NaN (memory, skipped, tokens, time: 0), as in
// files of older versions and for losses that were not finite.
struct RunMetrics {
  struct Process {  // from each process's first step
    FirstStep first;
    double time = 0.0;
  };
  std::vector<StepMetrics> steps;
  std::vector<Validation> validations;
  std::vector<Process> processes;
  std::string ended;                  // how the run ended, if the last line says so; else empty
  double last_time = 0.0;             // of the newest line
  int64_t last_step = 0;              // the latest of any line
  std::vector<std::string> warnings;  // about lines that are no metrics and are left out

  bool empty() const { return steps.empty() && validations.empty(); }
};

// Follows a file. A resumed run rewrites the file; the reader then starts again.
class MetricsReader {
 public:
  explicit MetricsReader(std::filesystem::path path) : path_(std::move(path)) {}

  // Reads on to the last complete line. Returns whether there was anything new; a missing file has
  // nothing. Throws when the file cannot be read.
  bool update();
  // Handles text after the last newline: a complete line is read, a partial one gives a warning.
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
  std::string pending_;  // a line without its newline so far
};

// The whole file. Throws when it is missing or cannot be read.
RunMetrics read_metrics(const std::filesystem::path& path);

}  // namespace quern
