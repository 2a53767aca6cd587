#include "train/metrics.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/atomic_file.h"

namespace quern {

namespace {

// The lines up to and including `last_step`; a line cut short by a crash is dropped.
std::string keep_until(const std::filesystem::path& path, int64_t last_step) {
  std::ifstream in(path);
  std::string kept, line;
  while (std::getline(in, line)) {
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_discarded() && row.value("step", last_step + 1) <= last_step) kept += line + "\n";
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& path, int64_t last_step) : path_(path) {
  const std::string kept = last_step < 0 ? "" : keep_until(path, last_step);
  write_file_atomically(path, kept);
  file_.open(path, std::ios::app);
  QUERN_CHECK(file_, path.string(), ": cannot be opened for writing");
}

void MetricsLog::write(const StepMetrics& metrics) {
  const nlohmann::ordered_json row = {{"step", metrics.step},
                                      {"loss", metrics.loss},
                                      {"grad_norm", metrics.grad_norm},
                                      {"lr", metrics.lr},
                                      {"ms", metrics.ms},
                                      {"tokens_per_s", metrics.tokens_per_s},
                                      {"mfu", metrics.mfu},
                                      {"memory_bytes", metrics.memory_bytes},
                                      {"skipped", metrics.skipped}};
  line(row.dump());
}

void MetricsLog::write_validation(int64_t step, double loss) {
  line(nlohmann::ordered_json{{"step", step}, {"val_loss", loss}}.dump());
}

void MetricsLog::write_first_step(int64_t step, double seconds) {
  line(nlohmann::ordered_json{{"step", step}, {"first_step_s", seconds}}.dump());
}

void MetricsLog::line(const std::string& text) {
  file_ << text << '\n' << std::flush;
  QUERN_CHECK(file_, path_.string(), ": cannot write; is the disk full?");
}

}  // namespace quern
