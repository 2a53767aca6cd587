#include "bench/timeline.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"
#include "tensor/context.h"

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

Summary summarize(std::vector<double> values) {
  QUERN_CHECK(!values.empty(), "summarize: no measurements");
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  Summary summary;
  summary.median = (values[(n - 1) / 2] + values[n / 2]) / 2;
  summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n);
  for (const double value : values) {
    summary.std += (value - summary.mean) * (value - summary.mean) / static_cast<double>(n);
  }
  summary.std = std::sqrt(summary.std);
  if (n > 1) {  // the sample's deviation is std sqrt(n / (n - 1)), the mean's that over sqrt(n)
    const auto degrees = static_cast<int64_t>(n) - 1;
    summary.ci95 = student_t_975(degrees) * summary.std / std::sqrt(static_cast<double>(degrees));
  }
  return summary;
}

double student_t_975(int64_t degrees) {
  QUERN_CHECK(degrees >= 1, "student's t: degrees of freedom are ", degrees,
              ", expected at least 1");
  double low = 1.9, high = 13.0;  // of infinitely many degrees 1.96, of one 12.71
  for (int i = 0; i < 60; ++i) {  // bisection to the last bit
    const double middle = (low + high) / 2;
    (student_t_within(middle, degrees) < 0.95 ? low : high) = middle;
  }
  return high;
}

}  // namespace quern
