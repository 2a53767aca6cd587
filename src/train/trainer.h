// The training loop.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dist/rank_team.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "run/metrics.h"
#include "run/model_instance.h"
#include "run/run_folder.h"
#include "run/train_state.h"
#include "train/batch_feeder.h"
#include "train/evaluate.h"
#include "train/loss_readback.h"
#include "train/memory_report.h"
#include "train/training_data.h"
#include "train/training_step.h"

namespace quern {

// The facts about a run before its first step.
struct RunSummary {
  const Config& config;  // resolved
  std::filesystem::path folder;
  std::string device;
  int64_t parameters = 0;
  PeakEstimate memory;
  int64_t train_tokens = 0, validation_tokens = 0;
  int64_t first_step = 0;  // > 0: resumed
};

// Times in seconds since the start of the process, and the peak FLOP/s.
struct StartSummary {
  double context = 0.0;     // ready: the device, its libraries and the table of GEMM algorithms
  double model = 0.0;       // ready: data, weights, run folder
  double first_step = 0.0;  // ended on the device
  double peak_flops = 0.0;  // FLOP/s, measured after the first step; 0: unknown
};

// Receives the events of a run; each method is optional.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void on_start(const RunSummary&) {}
  virtual void on_first_step(const StartSummary&) {}
  virtual void on_step(const StepMetrics&) {}  // every log_every steps, and the last
  virtual void on_progress(int64_t /*step*/, double /*loss*/) {}        // every step
  virtual void on_validating(int64_t /*done*/, int64_t /*windows*/) {}  // before each batch
  virtual void on_validation(int64_t /*step*/, const Evaluation&, bool /*best*/) {}
  virtual void on_sample(int64_t /*step*/, const std::string& /*text*/) {}
  virtual void on_checkpoint(int64_t /*step*/, const std::filesystem::path&) {}
  virtual void on_warning(const std::string&) {}
};

struct TrainResult {
  std::filesystem::path folder;
  int64_t steps = 0;
  bool interrupted = false;    // by `stop`; the run can be resumed
  double train_seconds = 0.0;  // without validation, samples and checkpoints
  double best_loss = 0.0;      // validation; infinity when there was none
  int64_t best_step = 0;
  bool has_tokenizer = false;
};

class Trainer {
 public:
  // Opens the data, builds the model on the current Context (make_context), and creates the run
  // folder, or continues the one in config.run.resume. Throws when any of them do not fit.
  // Several ranks train together, each in its own process; the first one writes the run folder.
  // They outlive this.
  Trainer(const Config& config, TrainObserver& observer, Communicator* ranks = nullptr);

  // Runs to the last step, or until *stop becomes true, and saves a checkpoint. Throws for a loss
  // or norm that is not finite under on_nonfinite = stop, after saving the last finite state. Any
  // other error, too, is thrown after saving the last whole step, except where ranks share out the
  // state.
  // Throws OutOfMemory with a report (memory_report.h), after writing the folder's memory.pickle.
  TrainResult run(const std::atomic<bool>* stop = nullptr);

 private:
  using Clock = std::chrono::steady_clock;
  struct Stopped {};  // thrown by a validation or a sample to stop the run

  void start();
  void check_data_of_ranks() const;
  void check_processors_of_ranks() const;
  void decide_recompute();
  void open_folder();
  int64_t windows_a_step() const;
  SamplerState sampler_after(int64_t steps) const;
  void feed_from(int64_t steps);
  void resume();
  void keep_tokenizer();
  void note_data();
  bool is_saved(const std::filesystem::path& checkpoint) const;
  bool keeps_best_of_earlier();
  void use_saved_algorithms();
  TrainResult train(const std::atomic<bool>* stop);
  bool train_step();  // false: stopped between its micro-batches, without a change
  static std::string device_name();
  void finish_start();
  void stop_clock();
  void settle(bool all);  // fetches results that have arrived; all: waits for every one
  void report(const StepResult& result);
  void end_log(const std::string& how);
  std::string save_after_error();
  std::string saved_after(const std::exception& error);
  void report_rest();
  void end_log_after_error(const std::string& how);
  void take_counters(const StepResult& result);
  void handle_nonfinite(const StepResult& result);
  std::string nonfinite_origin(int64_t bad_step);
  std::string trace_nonfinite(int64_t bad_step);
  void at_intervals();
  void catch_up();
  void validate_now();
  void take_validation(double loss);
  void sample_now();
  void write_sample();
  void warn_no_sample(const std::string& reason);
  void check_state() const;
  void save(const std::string& keep_reason = "");
  void write_checkpoint(const std::string& keep_reason, const RankTeam& team);
  void finish_checkpoint(const std::filesystem::path& path, const TrainState& state,
                         const std::string& keep_reason);
  std::string with_whole_weights(const std::function<void()>& work);
  TrainState current_state() const;
  bool due(int64_t every) const;
  bool stopping() const;

  StartSummary started_;
  Config config_;
  TrainObserver& observer_;
  RankTeam team_;
  MemoryWatch memory_;
  TrainingData data_;
  BatchOptions batches_;
  std::optional<RunFolder> folder_;        // created after the model
  std::filesystem::path snapshots_ = ".";  // of memory: the run folder, once there is one
  std::unique_ptr<ModelInstance> instance_;
  std::unique_ptr<ShardedWeights> shards_;  // where ranks share out the arena
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<BatchFeeder> feeder_;
  std::unique_ptr<MetricsLog> metrics_;  // the first rank's
  Readback readback_;
  const std::atomic<bool>* stop_ = nullptr;
  bool ranks_stop_ = false;  // several ranks know that one of them was asked to stop
  LoggedState logged_;       // of the step that a resumed run starts from
  bool sampled_ = false;     // that step
  Schedule schedule_;

  TrainState state_;  // counters as far as the host knows
  struct {
    int64_t step = 0, windows = 0;
  } begun_;                     // where this process began: its steps may be of another size
  int64_t peak_bytes_ = 0;      // peak before the last reset_peak of the allocator
  double train_seconds_ = 0.0;  // the clock runs only during steps
  Clock::time_point clock_;
  double unreported_ms_ = 0.0;  // of the steps since the last report
  int64_t unreported_steps_ = 0;
  std::optional<StepMetrics> unwritten_;  // the row on which metrics_ failed
  int64_t saved_step_ = -1;
  bool saving_ = false;  // or a save has failed
  bool ended_ = false;   // metrics.jsonl has the reason
};

}  // namespace quern
