// Shows a training run in a terminal (a progress bar under the lines) or in a pipe (lines alone).
#pragma once

#include <chrono>

#include "train/trainer.h"

namespace quern {

class ConsoleObserver : public TrainObserver {
 public:
  explicit ConsoleObserver(bool terminal) : terminal_(terminal) {}

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
  void line(const std::string& text);  // above the progress bar
  void draw_bar(int64_t step, double loss);
  void clear_bar();
  std::string eta(int64_t step) const;

  bool terminal_;
  bool bar_drawn_ = false;
  int64_t steps_ = 0, first_step_ = 0;
  double validation_loss_ = 0.0;  // the last one; 0: none yet
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace quern
