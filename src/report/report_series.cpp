#include "report/report_series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quern {

namespace {

struct Column {
  const char* name;
  double (*value)(const StepMetrics&);
};

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

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

ChartData chart_data(const std::vector<StepMetrics>& steps, double tokens_per_step, size_t most) {
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
    const int64_t tokens = steps[end - 1].tokens;
    data.step.push_back(step);
    data.tokens.push_back(tokens > 0 ? static_cast<double>(tokens)
                                     : tokens_per_step * static_cast<double>(step));
    data.seconds.push_back(seconds);
  }
  for (const Column& column : kColumns) data.series.push_back(thinned(steps, ends, column));
  return data;
}

}  // namespace quern
