#include "console.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "command_text.h"
#include "config/config_print.h"
#include "io/utf8.h"

namespace quern {

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

double mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string count_text(int64_t n) {
  if (n < 10'000) return fmt::format("{}", n);
  if (n < 10'000'000) return fmt::format("{:.2f} M", static_cast<double>(n) / 1e6);
  if (n < 1'000'000'000) return fmt::format("{:.1f} M", static_cast<double>(n) / 1e6);
  return fmt::format("{:.2f} B", static_cast<double>(n) / 1e9);
}

// Never throws: a reader that went away must not cost the run its checkpoint. main reports it.
void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

void ConsoleObserver::line(const std::string& text) {
  clear_bar();
  put(text + "\n");
}

void ConsoleObserver::clear_bar() {
  if (bar_drawn_) put("\r\033[K");
  bar_drawn_ = false;
}

std::string ConsoleObserver::eta(int64_t step) const {
  const auto done = static_cast<double>(std::max<int64_t>(1, step - first_step_));
  return duration_text(seconds(Clock::now() - start_) / done * static_cast<double>(steps_ - step));
}

void ConsoleObserver::on_start(const RunSummary& s) {
  steps_ = s.config.train.steps;
  first_step_ = s.first_step;
  start_ = drawn_ = Clock::now();
  line(config_toml(s.config));
  line(fmt::format("model       {} parameters, {} tokens a step", count_text(s.parameters),
                   s.config.train.batch * s.config.train.accumulate * s.config.model.context));
  line(fmt::format("data        {} tokens to train on, {} to validate", count_text(s.train_tokens),
                   count_text(s.validation_tokens)));
  line(fmt::format(
      "memory      {:.1f} MiB predicted: {:.1f} weights and optimizer, {:.1f} activations",
      mebibytes(s.memory.total()), mebibytes(s.memory.state()),
      mebibytes(s.memory.total() - s.memory.state())));
  line(fmt::format("device      {}", s.device));
  line(fmt::format("run folder  {}", s.folder.string()));
  if (s.first_step > 0) line(fmt::format("resumed     after step {}", s.first_step));
  line("");
}

void ConsoleObserver::on_first_step(const StartSummary& s) {
  line(fmt::format("first step  after {:.2f} s (device ready after {:.2f} s, model after {:.2f} s)",
                   s.first_step, s.context, s.model));
  if (s.peak_flops == 0.0) return;
  line(fmt::format("peak        {:.2f} TFLOP/s, measured on a matrix product: 100 % MFU",
                   s.peak_flops / 1e12));
}

void ConsoleObserver::on_step(const StepMetrics& m) {
  const std::string mfu = m.mfu > 0.0 ? fmt::format("mfu {:.1f} %  ", 100.0 * m.mfu) : "";
  line(
      fmt::format("step {:>6}/{}  loss {:.4f}  norm {:.3f}  lr {:.2e}  {:.1f} ms  {:.0f} tokens/s  "
                  "{}{:.0f} MiB  ETA {}",
                  m.step, steps_, m.loss, m.grad_norm, m.lr, m.ms, m.tokens_per_s, mfu,
                  mebibytes(m.memory_bytes), eta(m.step)));
}

void ConsoleObserver::on_progress(int64_t step, double loss) {
  if (!terminal_ || seconds(Clock::now() - drawn_) < 0.1) return;
  drawn_ = Clock::now();
  draw_bar(step, loss);
}

void ConsoleObserver::draw_bar(int64_t step, double loss) {
  constexpr int64_t kWidth = 30;
  const int64_t filled = step * kWidth / std::max<int64_t>(1, steps_);
  const std::string bar(static_cast<size_t>(filled), '#');
  const std::string validation =
      validation_loss_ > 0.0 ? fmt::format("  val {:.4f}", validation_loss_) : "";
  put(fmt::format("\r\033[K[{:<{}}] {}/{}  loss {:.4f}{}  ETA {}", bar, kWidth, step, steps_, loss,
                  validation, eta(step)));
  bar_drawn_ = true;
}

void ConsoleObserver::on_validating(int64_t done, int64_t windows) {
  if (!terminal_ || (done > 0 && seconds(Clock::now() - drawn_) < 0.1)) return;
  drawn_ = Clock::now();
  put(fmt::format("\r\033[Kvalidating: {}/{} windows", done, windows));
  bar_drawn_ = true;
}

void ConsoleObserver::on_validation(int64_t step, const Evaluation& e, bool best) {
  validation_loss_ = e.loss;
  line(fmt::format("step {:>6}/{}  validation loss {:.4f} over {} windows in {:.1f} s{}", step,
                   steps_, e.loss, e.windows, e.seconds, best ? "  (best so far)" : ""));
}

void ConsoleObserver::on_sample(int64_t step, const std::string& text) {
  line(fmt::format("--- sample at step {}\n{}\n---", step, printable_utf8(text)));
}

void ConsoleObserver::on_checkpoint(int64_t, const std::filesystem::path& path) {
  if (!terminal_) line(fmt::format("saved {}", path.string()));
}

void ConsoleObserver::on_warning(const std::string& text) {
  clear_bar();
  fmt::print(stderr, "quern: warning: {}\n", text);
}

void ConsoleObserver::finish(const TrainResult& r) {
  clear_bar();
  const std::string folder = r.folder.string();
  if (r.interrupted) {
    line(fmt::format(
        "\nstopped after step {}; everything is saved. Go on with\n  quern train --resume {}",
        r.steps, folder));
    return;
  }
  line(fmt::format("\ndone: {} steps, {} of training", r.steps, duration_text(r.train_seconds)));
  if (r.best_step > 0)
    line(fmt::format("best validation loss {:.4f} at step {}", r.best_loss, r.best_step));
  line(fmt::format(
      "run folder: {}\nA sample from the best checkpoint:  quern generate {} --prompt \"...\"",
      folder, folder));
}

}  // namespace quern
