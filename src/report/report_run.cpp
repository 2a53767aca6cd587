#include "report/report_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/median.h"
#include "config/config_parse.h"
#include "io/small_file.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostSamples = 200;  // evenly spaced, including the first and the last

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

std::string status_text(const ReportSummary& s, const RunMetrics& metrics) {
  const std::string& ended = metrics.ended;
  const int64_t step = metrics.last_step;
  // Versions that wrote no end wrote no times either.
  const bool old = ended.empty() && metrics.last_time == 0.0;
  if (ended == "done" || (old && s.steps > 0 && step >= s.steps)) return "done";
  std::string where = cat("at step ", step, s.steps > 0 ? cat(" of ", s.steps) : std::string());
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
  std::vector<Sample> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (const std::optional<int64_t> step = sample_step(line)) {
      samples.push_back({*step, ""});
    } else if (!samples.empty()) {
      samples.back().text.append(line).append("\n");
    }
  }
  for (Sample& sample : samples) {
    if (sample.text.ends_with('\n')) sample.text.pop_back();
  }
  return samples;
}

ReportRun read_report_run(const fs::path& path) {
  const RunFolder folder = RunFolder::open(path);
  ReportRun run;
  run.folder = folder.path();
  run.name = fs::absolute(folder.path()).lexically_normal().filename().string();
  if (run.name.empty()) run.name = folder.path().parent_path().filename().string();
  try {
    run.config = load_config(folder.config().string());
  } catch (const Error& error) {
    run.warnings.push_back(cat(error.what(), "; the report goes without this configuration"));
  }
  if (fs::exists(folder.metrics())) run.metrics = read_metrics(folder.metrics());
  run.warnings.insert(run.warnings.end(), run.metrics.warnings.begin(), run.metrics.warnings.end());
  if (run.metrics.empty() && run.metrics.ended.empty()) {
    run.warnings.push_back(cat(folder.metrics().string(), ": there are no metrics yet"));
  }
  try {
    run.samples = thinned(parse_samples(read_if_there(folder.samples()).value_or("")));
  } catch (const Error& error) {
    run.warnings.push_back(cat(error.what(), "; the report goes without samples"));
  }
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
    const ChartData whole = chart_data(metrics.steps, 2);
    s.tokens = whole.tokens.back();
    s.train_seconds = whole.seconds.back();
  }
  if (!metrics.processes.empty()) {
    s.device = metrics.processes.back().first.device;
    s.parameters = metrics.processes.back().first.parameters;
  }
  s.status = status_text(s, metrics);
  return s;
}

namespace {

struct Column {
  const char* name;
  double (*value)(const StepMetrics&);
};

// Turns 0, which stands for "unknown", into NaN.
double known(double value) {
  return value > 0.0 ? value : kUnknown;
}

constexpr Column kColumns[] = {
    {"loss", [](const StepMetrics& m) { return m.loss; }},
    {"lr", [](const StepMetrics& m) { return m.lr; }},
    {"grad_norm", [](const StepMetrics& m) { return m.grad_norm; }},
    {"tokens_per_s", [](const StepMetrics& m) { return m.tokens_per_s; }},
    {"mfu", [](const StepMetrics& m) { return known(m.mfu); }},
    {"memory_bytes",
     [](const StepMetrics& m) { return known(static_cast<double>(m.memory_bytes)); }},
    {"z_loss", [](const StepMetrics& m) { return m.z_loss.value_or(kUnknown); }},
};

Series thinned(const std::vector<StepMetrics>& steps, const std::vector<size_t>& ends,
               const Column& column) {
  Series series{column.name, {}, {}, {}};
  size_t begin = 0;
  for (const size_t end : ends) {
    double sum = 0.0, low = std::numeric_limits<double>::infinity(), high = -low;
    size_t count = 0;
    for (; begin < end; ++begin) {
      const double x = column.value(steps[begin]);
      if (!std::isfinite(x)) continue;
      sum += x;
      low = std::min(low, x);
      high = std::max(high, x);
      ++count;
    }
    series.mean.push_back(count > 0 ? sum / static_cast<double>(count) : kUnknown);
    if (ends.size() == steps.size()) continue;
    series.low.push_back(count > 0 ? low : kUnknown);
    series.high.push_back(count > 0 ? high : kUnknown);
  }
  return series;
}

}  // namespace

std::vector<size_t> bucket_ends(size_t n, size_t most) {
  std::vector<size_t> ends;
  if (n <= most) {
    for (size_t i = 1; i <= n; ++i) ends.push_back(i);
    return ends;
  }
  const size_t half = most / 2;
  const auto last = static_cast<double>(n);
  for (size_t i = 1; i <= half; ++i) {
    const double part = static_cast<double>(i) / static_cast<double>(half);
    ends.push_back(static_cast<size_t>(std::llround(last * part)));
    ends.push_back(static_cast<size_t>(std::llround(std::pow(last, part))));
  }
  ends.push_back(1);
  ends.push_back(n - 1);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

ChartData chart_data(const std::vector<StepMetrics>& steps, size_t most) {
  ChartData data;
  const std::vector<size_t> ends = bucket_ends(steps.size(), most);
  double seconds = 0.0;
  size_t at = 0;
  int64_t step = 0;
  for (const size_t end : ends) {
    for (; at < end; ++at) {
      const StepMetrics& m = steps[at];
      if (std::isfinite(m.ms)) seconds += 1e-3 * m.ms * static_cast<double>(m.step - step);
      step = m.step;
    }
    data.step.push_back(step);
    data.tokens.push_back(static_cast<double>(steps[end - 1].tokens));
    data.seconds.push_back(seconds);
  }
  for (const Column& column : kColumns) data.series.push_back(thinned(steps, ends, column));
  return data;
}

}  // namespace quern
