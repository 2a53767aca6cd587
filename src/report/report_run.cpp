#include "report/report_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>

#include "base/median.h"
#include "config/config_parse.h"
#include "report/report_series.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostSamples = 200;  // evenly spaced, including the first and the last

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

double median_of(const std::vector<StepMetrics>& steps, double StepMetrics::*value) {
  std::vector<double> values;
  for (const StepMetrics& m : steps) {
    if (std::isfinite(m.*value)) values.push_back(m.*value);
  }
  return values.empty() ? kUnknown : median(std::move(values));
}

// The sum over all processes, from each start to its last line.
double wall_seconds(const RunMetrics& metrics) {
  double total = 0.0;
  const auto& processes = metrics.processes;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (processes[i].time == 0.0) return kUnknown;  // written by a version without times
    const bool newest = i + 1 == processes.size();
    const double start = processes[i].time - processes[i].first.seconds;
    double end = newest ? metrics.last_time : processes[i].time;
    for (const StepMetrics& m : metrics.steps) {
      if (!newest && m.time < processes[i + 1].time) end = std::max(end, m.time);
    }
    total += end - start;
  }
  return processes.empty() ? kUnknown : total;
}

std::string status_text(const ReportSummary& s, const std::string& ended) {
  if (ended == "done" || (s.steps > 0 && s.step >= s.steps)) return "done";
  std::string where = cat("at step ", s.step, s.steps > 0 ? cat(" of ", s.steps) : std::string());
  if (ended.empty()) return where;
  return ended == "stopped" ? "stopped " + where : "failed " + where + ": " + ended;
}

std::vector<Sample> thinned(const std::vector<Sample>& samples) {
  if (samples.size() <= kMostSamples) return samples;
  std::vector<Sample> kept;
  for (size_t i = 0; i < kMostSamples; ++i) {
    kept.push_back(samples[i * (samples.size() - 1) / (kMostSamples - 1)]);
  }
  return kept;
}

}  // namespace

std::vector<Sample> parse_samples(const std::string& text) {
  constexpr std::string_view kHead = "--- step ";
  std::vector<Sample> samples;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t newline = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, newline - begin);
    int64_t step = 0;
    const char* end = line.data() + line.size();
    const bool head = line.starts_with(kHead) &&
                      std::from_chars(line.data() + kHead.size(), end, step).ptr == end &&
                      !line.ends_with(' ');
    if (head) {
      samples.push_back({step, ""});
    } else if (!samples.empty()) {
      samples.back().text.append(line).append("\n");
    }
    begin = newline + 1;
  }
  for (Sample& sample : samples) {
    if (sample.text.ends_with('\n')) sample.text.pop_back();
  }
  return samples;
}

double tokens_per_step(const std::optional<Config>& config) {
  if (!config) return 0.0;
  return static_cast<double>(config->train.batch * config->train.accumulate *
                             config->model.context);
}

ReportRun read_report_run(const fs::path& path) {
  const RunFolder folder = RunFolder::open(path);
  ReportRun run;
  run.folder = folder.path();
  run.name = fs::absolute(folder.path()).lexically_normal().filename().string();
  if (run.name.empty()) run.name = folder.path().parent_path().filename().string();
  try {
    run.config = load_config(folder.config().string());
  } catch (const UsageError& error) {
    run.warnings.push_back(cat(error.what(), "; the report goes without this configuration"));
  }
  if (fs::exists(folder.metrics())) run.metrics = read_metrics(folder.metrics());
  run.warnings.insert(run.warnings.end(), run.metrics.warnings.begin(), run.metrics.warnings.end());
  if (run.metrics.empty()) {
    run.warnings.push_back(cat(folder.metrics().string(), ": there are no metrics yet"));
  }
  run.samples = thinned(parse_samples(read_text(folder.samples())));
  return run;
}

ReportSummary summarize(const ReportRun& run) {
  const RunMetrics& metrics = run.metrics;
  ReportSummary s;
  s.steps = run.config ? run.config->train.steps : 0;
  s.loss = s.best_val_loss = kUnknown;
  s.wall_seconds = wall_seconds(metrics);
  s.tokens_per_s = median_of(metrics.steps, &StepMetrics::tokens_per_s);
  s.mfu = median_of(metrics.steps, &StepMetrics::mfu);
  for (const Validation& v : metrics.validations) {
    s.step = std::max(s.step, v.step);
    if (v.loss < s.best_val_loss || !std::isfinite(s.best_val_loss)) {
      s.best_val_loss = v.loss;
      s.best_step = v.step;
    }
  }
  if (!metrics.steps.empty()) {
    const StepMetrics& last = metrics.steps.back();
    s.step = std::max(s.step, last.step);
    s.loss = last.loss;
    s.memory_bytes = last.memory_bytes;
    s.skipped = last.skipped;
    const ChartData whole = chart_data(metrics.steps, tokens_per_step(run.config), 2);
    s.tokens = whole.tokens.back();
    s.train_seconds = whole.seconds.back();
  }
  if (!metrics.processes.empty()) {
    s.device = metrics.processes.back().first.device;
    s.parameters = metrics.processes.back().first.parameters;
  }
  s.status = status_text(s, metrics.ended);
  return s;
}

}  // namespace quern
