// Shows a training run: in a terminal with a progress line at the bottom, in a pipe only lines.
#pragma once

#include <chrono>

#include "terminal.h"
#include "train/trainer.h"

namespace quern {

class ConsoleObserver : public TrainObserver {
 public:
  // print_config: print every configuration key, not only those that differ from the defaults.
  ConsoleObserver(const Terminal& terminal, bool print_config)
      : terminal_(terminal), print_config_(print_config) {}
  ~ConsoleObserver() override;

  void on_start(const RunSummary& summary) override;
  void on_first_step(const StartSummary& start) override;
  void on_step(const StepMetrics& metrics) override;
  void on_progress(int64_t step, double loss) override;
  void on_validating(int64_t done, int64_t windows) override;
  void on_validation(int64_t step, const Evaluation& evaluation, bool best) override;
  void on_sample(int64_t step, const std::string& text) override;
  void on_checkpoint(int64_t step, const std::filesystem::path& path) override;
  void on_warning(const std::string& text) override;
  void finish(const TrainResult& result);

 private:
  void line(const std::string& text);  // above the progress line
  void labelled_line(const std::string& label, const std::string& text);
  void draw(int64_t done, int64_t total, const std::vector<std::string>& fields);
  void draw_steps();
  void clear_progress();
  bool due();  // whether the progress line may be drawn again
  int64_t columns() const { return terminal_.size().columns; }
  std::string count(int64_t step) const;  // "step  12/100"
  std::string eta(int64_t step) const;

  Terminal terminal_;
  bool print_config_;
  std::string progress_;  // the line on screen; empty: none
  int64_t steps_ = 0, first_step_ = 0, step_ = 0;
  double loss_ = 0.0, validation_loss_ = 0.0;  // the latest ones; 0: none yet
  int64_t memory_bytes_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace quern
