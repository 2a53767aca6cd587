#include "bench/harness.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "base/median.h"

namespace quern {

namespace {

// The probability that |t| is below `t` (Abramowitz and Stegun, 26.7.3 and 26.7.4).
double student_t_within(double t, int64_t degrees) {
  const double theta = std::atan(t / std::sqrt(static_cast<double>(degrees)));
  const double cos2 = std::cos(theta) * std::cos(theta);
  const bool odd = degrees % 2 == 1;
  double term = odd ? std::cos(theta) : 1.0, sum = degrees == 1 ? 0.0 : term;
  for (int64_t k = odd ? 3 : 2; k < degrees; k += 2) {
    const auto n = static_cast<double>(k);
    term *= cos2 * (n - 1.0) / n;
    sum += term;
  }
  const double series = std::sin(theta) * sum;
  return odd ? (theta + series) * 2.0 / std::numbers::pi : series;
}

}  // namespace

Timeline::Timeline(size_t marks) : capacity_(marks) {
  const Context& context = Context::current();
  if (!context.device().is_cuda()) {
    points_.reserve(marks);
    return;
  }
  stream_ = context.cuda_stream();
  for (size_t i = 0; i < marks; ++i) events_.emplace_back(cuda::EventKind::timing);
}

void Timeline::mark() {
  QUERN_CHECK(marked_ < capacity_, "timeline: more than ", capacity_, " marks");
  if (events_.empty()) {
    points_.push_back(std::chrono::steady_clock::now());
  } else {
    events_[marked_].record(stream_);
  }
  ++marked_;
}

std::vector<double> Timeline::intervals() const {
  std::vector<double> ms;
  if (marked_ < 2) return ms;
  if (!events_.empty()) events_[marked_ - 1].synchronize();
  for (size_t i = 1; i < marked_; ++i) {
    ms.push_back(
        events_.empty()
            ? std::chrono::duration<double, std::milli>(points_[i] - points_[i - 1]).count()
            : events_[i].ms_since(events_[i - 1]));
  }
  return ms;
}

std::vector<double> time_rounds(int64_t warmup, int64_t count, size_t parts,
                                const std::function<void(const Mark& mark)>& round) {
  for (int64_t i = 0; i < warmup; ++i) round([] {});
  Context::current().synchronize();
  Timeline timeline(1 + static_cast<size_t>(count) * parts);
  timeline.mark();
  for (int64_t i = 0; i < count; ++i) round([&] { timeline.mark(); });
  return timeline.intervals();
}

std::vector<double> part_of(const std::vector<double>& values, size_t parts, size_t index) {
  std::vector<double> part;
  for (size_t i = index; i < values.size(); i += parts) part.push_back(values[i]);
  return part;
}

std::vector<double> sums_of(const std::vector<double>& values, size_t count) {
  std::vector<double> sums(values.size() / count, 0.0);
  for (size_t i = 0; i < values.size(); ++i) sums[i / count] += values[i];
  return sums;
}

Summary summarize(const std::vector<double>& values) {
  QUERN_CHECK(!values.empty(), "summarize: no measurements");
  const size_t n = values.size();
  Summary summary;
  summary.median = median(values);
  summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n);
  for (const double value : values) {
    summary.std += (value - summary.mean) * (value - summary.mean) / static_cast<double>(n);
  }
  summary.std = std::sqrt(summary.std);
  if (n > 1) {  // standard error: the sample's deviation, std sqrt(n / (n - 1)), over sqrt(n)
    const auto degrees = static_cast<int64_t>(n) - 1;
    summary.ci95 = student_t_975(degrees) * summary.std / std::sqrt(static_cast<double>(degrees));
  }
  return summary;
}

double student_t_975(int64_t degrees) {
  QUERN_CHECK(degrees >= 1, "student's t: degrees of freedom are ", degrees,
              ", expected at least 1");
  double low = 1.9, high = 13.0;  // 1.96 for infinitely many degrees, 12.71 for one
  for (int i = 0; i < 60; ++i) {  // bisection to the last bit
    const double middle = (low + high) / 2;
    (student_t_within(middle, degrees) < 0.95 ? low : high) = middle;
  }
  return high;
}

Allocator& current_allocator() {
  const Context& context = Context::current();
  return *context.allocator();
}

std::string out_of_memory_in(const std::function<void()>& work) {
  current_allocator().release_cached();
  try {
    work();
    return "";
  } catch (const OutOfMemory& error) {
    return error.what();
  }
}

}  // namespace quern
