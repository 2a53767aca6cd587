#include "run/metrics.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/small_file.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

// Calls f(line, row, step) for each line of metrics; a line cut short by a crash is none.
template <class F>
void for_each_row(const std::filesystem::path& path, const F& f) {
  std::istringstream in(read_if_there(path).value_or(""));
  std::string line;
  while (std::getline(in, line)) {
    const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_object()) continue;
    const auto step = row.find("step");
    if (step != row.end() && step->is_number_integer()) f(line, row, step->get<int64_t>());
  }
}

// The lines up to and including `last_step`, but not those on a process's end: the run continues.
std::string keep_until(const std::filesystem::path& path, int64_t last_step) {
  std::string kept;
  for_each_row(path, [&](const std::string& line, const nlohmann::json& row, int64_t step) {
    if (step <= last_step && !row.contains("ended")) kept += cat(line, "\n");
  });
  return kept;
}

}  // namespace

LoggedState read_logged_state(const std::filesystem::path& path, int64_t step) {
  LoggedState state;
  for_each_row(path, [&](const std::string&, const nlohmann::json& row, int64_t at) {
    if (at != step) return;
    const auto loss = row.find("val_loss");
    if (loss != row.end() && loss->is_number()) state.validation = loss->get<double>();
    const auto ended = row.find("ended");
    state.done = state.done || (ended != row.end() && *ended == "done");
  });
  return state;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

MetricsLog::MetricsLog(const std::filesystem::path& path, int64_t last_step, bool tensorboard) {
  const std::string kept = last_step < 0 ? "" : keep_until(path, last_step);
  write_file_atomically(path, kept);
  file_.emplace(path);
  if (tensorboard) {
    tensorboard_ = std::make_unique<TensorBoardLog>(path.parent_path(), last_step, unix_time());
  }
}

void MetricsLog::write(const StepMetrics& m) {
  Json row = {{"loss", m.loss},
              {"grad_norm", m.grad_norm},
              {"lr", m.lr},
              {"ms", m.ms},
              {"tokens_per_s", m.tokens_per_s},
              {"mfu", m.mfu},
              {"memory_bytes", m.memory_bytes},
              {"skipped", m.skipped},
              {"tokens", m.tokens}};
  if (m.z_loss) row["z_loss"] = *m.z_loss;
  numbers(m.step, m.time, row);
}

void MetricsLog::write_validation(int64_t step, double loss) {
  numbers(step, unix_time(), {{"val_loss", loss}});
}

// Writes the same numbers under the same names to both files.
void MetricsLog::numbers(int64_t step, double time, const Json& numbers) {
  Json row = {{"step", step}};
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : numbers.items()) {
    row[name] = value;
    scalars.push_back({name, value.get<float>()});
  }
  row["time"] = time;
  // After an error here, the caller's second attempt writes the line, once.
  if (auto tensorboard = std::move(tensorboard_)) {
    tensorboard->write(step, time, scalars);
    tensorboard_ = std::move(tensorboard);
  }
  line(row.dump());
}

void MetricsLog::write_first_step(const FirstStep& first) {
  line(Json{{"step", first.step},
            {"first_step_s", first.seconds},
            {"device", first.device},
            {"parameters", first.parameters},
            {"time", unix_time()}}
           .dump());
}

void MetricsLog::write_end(int64_t step, const std::string& how) {
  line(Json{{"step", step}, {"ended", how}, {"time", unix_time()}}.dump(
      -1, ' ', false, Json::error_handler_t::replace));  // a path in `how` may be no UTF-8
}

void MetricsLog::sync() {
  file_->sync();
}

void MetricsLog::line(const std::string& text) {
  file_->write(cat(text, "\n"));
}

}  // namespace quern
