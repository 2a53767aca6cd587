// The metrics of a run: numbers per step, and their log files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "io/append_file.h"
#include "run/tensorboard.h"

namespace quern {

struct StepMetrics {
  int64_t step = 0;              // steps done, this one included
  double loss = 0.0;             // nats per token, mean over the step's micro-batches
  std::optional<double> z_loss;  // the training loss's second term, likewise; unset: none
  double grad_norm = 0.0;        // before clipping
  double lr = 0.0;
  double ms = 0.0;  // mean per step since the last report
  double tokens_per_s = 0.0;
  double mfu = 0.0;          // model FLOP/s over the measured peak; 0 when unknown
  int64_t memory_bytes = 0;  // most in use so far
  int64_t skipped = 0;       // steps not applied because of a non-finite loss or norm
  int64_t tokens = 0;        // trained on so far
  double time = 0.0;         // seconds since 1970
};

// The first step of a process.
struct FirstStep {
  int64_t step = 0;
  double seconds = 0.0;  // from the process's start to the step's end
  std::string device;
  int64_t parameters = 0;
};

// metrics.jsonl: one JSON object a line; {"step", "loss", ...} of a step, {"step", "val_loss"} of a
// validation, {"step", "first_step_s", "device", "parameters"} of the first step of a process,
// {"step", "ended"} when it ends. Each has its "time", in seconds since 1970. On request the
// numbers also go to a TensorBoard event file beside it.
class MetricsLog {
 public:
  // Continues the file after `last_step` and drops later lines, written before the run stopped. -1
  // starts a new file.
  MetricsLog(const std::filesystem::path& path, int64_t last_step, bool tensorboard = false);
  // After an error of the event file a second attempt writes the line alone; no line comes twice.
  void write(const StepMetrics& metrics);
  void write_validation(int64_t step, double loss);
  void write_first_step(const FirstStep& first);
  void sync();  // to disk
  // `how`: "done", "stopped" (it can be resumed), or what went wrong.
  void write_end(int64_t step, const std::string& how);

 private:
  void numbers(int64_t step, double time, const nlohmann::ordered_json& numbers);
  void line(const std::string& text);

  std::optional<AppendFile> file_;
  std::unique_ptr<TensorBoardLog> tensorboard_;  // null: not requested
};

// The state of a run at `step`, the last one that its log counts.
struct LoggedState {
  std::optional<double> validation;  // the loss of the validation of that step
  bool done = false;                 // the run ended there, with all steps done
};
LoggedState read_logged_state(const std::filesystem::path& path, int64_t step);

double unix_time();  // seconds since 1970, now

}  // namespace quern
