// What a run reports: numbers a step, and the log file of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace quern {

struct StepMetrics {
  int64_t step = 0;        // steps done, this one included
  double loss = 0.0;       // nats a token, mean over the step's micro-batches
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  double ms = 0.0;  // mean a step since the last report
  double tokens_per_s = 0.0;
  double mfu = 0.0;          // model FLOP/s over the measured peak; 0 when unknown
  int64_t memory_bytes = 0;  // most in use so far
  int64_t skipped = 0;       // steps not applied because of a non-finite loss or norm
};

// metrics.jsonl: one JSON object a line; {"step", "loss", ...} of a step, {"step", "val_loss"} of a
// validation, {"step", "first_step_s"} of the first step of a process.
class MetricsLog {
 public:
  // Continues the file after `last_step`: later lines, of a run that was stopped, are dropped. -1
  // begins anew.
  MetricsLog(const std::filesystem::path& path, int64_t last_step);
  void write(const StepMetrics& metrics);
  void write_validation(int64_t step, double loss);
  // Seconds from the process's start to the end of its first step.
  void write_first_step(int64_t step, double seconds);

 private:
  void line(const std::string& text);

  std::filesystem::path path_;
  std::ofstream file_;
};

}  // namespace quern
