#include "console.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>

#include "base/counted.h"
#include "base/shell_word.h"
#include "config/config_print.h"
#include "io/utf8.h"

namespace quern {

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

std::string count_text(int64_t n) {
  if (n < 10'000) return fmt::format("{}", n);
  if (n < 10'000'000) return fmt::format("{:.2f} M", static_cast<double>(n) / 1e6);
  if (n < 1'000'000'000) return fmt::format("{:.1f} M", static_cast<double>(n) / 1e6);
  return fmt::format("{:.2f} B", static_cast<double>(n) / 1e9);
}

std::string rate_text(double tokens_per_s) {
  if (tokens_per_s < 1e4) return fmt::format("{:.0f} tok/s", tokens_per_s);
  if (tokens_per_s < 1e6) return fmt::format("{:.1f}k tok/s", tokens_per_s / 1e3);
  return fmt::format("{:.2f}M tok/s", tokens_per_s / 1e6);
}

// Never throws: a closed pipe must not cost the run its checkpoint. main reports the error.
void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

ConsoleObserver::~ConsoleObserver() {
  clear_progress();
}

void ConsoleObserver::line(const std::string& text) {
  put((progress_.empty() ? "" : "\r\033[K") + text + "\n" + progress_);
}

void ConsoleObserver::labelled_line(const std::string& label, const std::string& text) {
  line(labelled(label, 12, text, static_cast<size_t>(columns())));
}

void ConsoleObserver::clear_progress() {
  if (!progress_.empty()) put("\r\033[K");
  progress_.clear();
}

bool ConsoleObserver::due() {
  const Clock::time_point now = Clock::now();
  if (!terminal_.live || seconds(now - drawn_) < 0.1) return false;
  drawn_ = now;
  return true;
}

void ConsoleObserver::draw(int64_t done, int64_t total, const std::vector<std::string>& fields) {
  constexpr int64_t kWidest = 30, kNarrowest = 5;
  const int64_t room = columns() - 1;  // a terminal may wrap a line that fills its last column
  const std::string text = clipped(fitted(fields, room), room);
  const int64_t width = std::min(kWidest, room - 2 - static_cast<int64_t>(text.size()));
  progress_ = text;
  if (width >= kNarrowest) {
    const std::string bar = progress_bar(done, total, width, terminal_.unicode);
    progress_ = (terminal_.colour ? "\033[32m" + bar + "\033[0m  " : bar + "  ") + text;
  }
  put("\r\033[K" + progress_);
}

void ConsoleObserver::draw_steps() {
  std::vector<std::string> fields = {fmt::format("{}/{}", step_, steps_)};
  if (step_ > first_step_) {
    fields.push_back("ETA " + eta(step_));
    fields.push_back(fmt::format("loss {:.4f}", loss_));
  }
  if (validation_loss_ > 0.0) fields.push_back(fmt::format("validation {:.4f}", validation_loss_));
  draw(step_, steps_, fields);
}

std::string ConsoleObserver::count(int64_t step) const {
  const std::string steps = std::to_string(steps_);
  return fmt::format("step {:>{}}/{}", step, steps.size(), steps);
}

std::string ConsoleObserver::eta(int64_t step) const {
  const auto done = static_cast<double>(std::max<int64_t>(1, step - first_step_));
  return duration_text(seconds(Clock::now() - start_) / done * static_cast<double>(steps_ - step));
}

void ConsoleObserver::on_start(const RunSummary& s) {
  steps_ = s.config.train.steps;
  first_step_ = step_ = s.first_step;
  start_ = drawn_ = Clock::now();
  if (print_config_) line(config_toml(s.config));
  std::vector<std::pair<std::string, std::string>> sections;  // "train", "steps=10, batch=4"
  for (const auto& [key, value] : changed_keys(s.config)) {
    if (sections.empty() || sections.back().first != key->section) {
      sections.emplace_back(key->section, "");
    }
    std::string& keys = sections.back().second;
    keys += cat(keys.empty() ? "" : ", ", key->name, "=", to_toml(value));
  }
  for (const auto& [section, keys] : sections) {
    if (!print_config_) labelled_line("[" + section + "]", keys);
  }
  line("");
  labelled_line("model", fmt::format("{} parameters, {} tokens a step", count_text(s.parameters),
                                     s.config.train.batch * s.config.train.accumulate *
                                         s.config.model.context * s.config.parallel.ranks));
  labelled_line("data", fmt::format("{} tokens to train on, {} to validate",
                                    count_text(s.train_tokens), count_text(s.validation_tokens)));
  std::string memory =
      fmt::format("{:.1f} MiB predicted: {:.1f} weights and optimizer, {:.1f} activations",
                  mebibytes(s.memory.total()), mebibytes(s.memory.state()),
                  mebibytes(s.memory.total() - s.memory.state()));
  if (s.memory.on_host > 0) {
    memory += fmt::format("; {:.1f} on the host", mebibytes(s.memory.on_host));
  }
  labelled_line("memory", memory);
  labelled_line("device", s.device);
  line("run folder  " + s.folder.string());
  if (s.first_step > 0) labelled_line("resumed", fmt::format("after step {}", s.first_step));
  if (terminal_.live) draw_steps();
}

void ConsoleObserver::on_first_step(const StartSummary& s) {
  labelled_line("first step",
                fmt::format("after {:.2f} s (device ready after {:.2f} s, model after {:.2f} s)",
                            s.first_step, s.context, s.model));
  if (s.peak_flops > 0.0) {
    labelled_line("peak", fmt::format("{:.2f} TFLOP/s, measured on a matrix product: 100 % MFU",
                                      s.peak_flops / 1e12));
  }
  line("");
}

// The most important fields come first: a narrow terminal drops the others. metrics.jsonl has all
// of them.
void ConsoleObserver::on_step(const StepMetrics& m) {
  memory_bytes_ = m.memory_bytes;
  std::vector<std::string> fields = {count(m.step), fmt::format("loss {:.4f}", m.loss),
                                     fmt::format("norm {:.3f}", m.grad_norm),
                                     fmt::format("lr {:.2e}", m.lr), rate_text(m.tokens_per_s)};
  if (!terminal_.live) fields.push_back("ETA " + eta(m.step));
  if (m.z_loss) fields.push_back(fmt::format("z-loss {:.3g}", *m.z_loss));
  if (m.mfu > 0.0) fields.push_back(fmt::format("mfu {:.1f} %", 100.0 * m.mfu));
  fields.push_back(fmt::format("{:.1f} ms", m.ms));
  fields.push_back(fmt::format("{:.0f} MiB", mebibytes(m.memory_bytes)));
  line(fitted(fields, columns()));
}

void ConsoleObserver::on_progress(int64_t step, double loss) {
  step_ = step;
  loss_ = loss;
  if (due()) draw_steps();
}

void ConsoleObserver::on_validating(int64_t done, int64_t windows) {
  if (!due() && (done > 0 || !terminal_.live)) return;
  draw(done, windows, {fmt::format("validating: {}/{} windows", done, windows)});
}

void ConsoleObserver::on_validation(int64_t step, const Evaluation& e, bool best) {
  validation_loss_ = e.loss;
  std::vector<std::string> fields = {count(step), fmt::format("validation loss {:.4f}", e.loss)};
  if (best) fields.emplace_back("best so far");
  fields.push_back(fmt::format("{} windows in {:.1f} s", e.windows, e.seconds));
  line(fitted(fields, columns()));
  if (terminal_.live) draw_steps();
}

void ConsoleObserver::on_sample(int64_t step, const std::string& text) {
  line(fmt::format("--- sample at step {}\n{}\n---", step, printable_utf8(text)));
}

void ConsoleObserver::on_checkpoint(int64_t, const std::filesystem::path& path) {
  if (!terminal_.live) line(fmt::format("saved {}", path.string()));
}

void ConsoleObserver::on_warning(const std::string& text) {
  if (!progress_.empty()) put("\r\033[K");
  spdlog::warn("{}", text);
  put(progress_);
}

void ConsoleObserver::finish(const TrainResult& r) {
  clear_progress();
  const std::string folder = r.folder.string(), word = shell_word(folder);
  if (r.interrupted) {
    line(fmt::format("\nstopped after step {}; all is saved\nGo on with\n  quern train --resume {}",
                     r.steps, word));
    return;
  }
  line("");
  const std::string memory =  // unknown without a logged step
      memory_bytes_ > 0 ? fmt::format(", {:.0f} MiB of memory at most", mebibytes(memory_bytes_))
                        : "";
  labelled_line("done:", fmt::format("{}, {} of training{}", counted(r.steps, "step"),
                                     duration_text(r.train_seconds), memory));
  if (r.best_step > 0)
    line(fmt::format("best validation loss {:.4f} at step {}", r.best_loss, r.best_step));
  line(fmt::format("run folder: {}\nA sample from the best checkpoint:\n  quern generate {} {}",
                   folder, word, r.has_tokenizer ? "--prompt \"...\"" : "--prompt_ids 1,2,3"));
}

}  // namespace quern
