#include "bench/timeline.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"

namespace quern {

Timeline::Timeline(size_t marks) : capacity_(marks) {
  const Context& context = Context::current();
  if (!context.device().is_cuda()) {
    points_.reserve(marks);
    return;
  }
  stream_ = context.cuda_stream().handle;
  for (size_t i = 0; i < marks; ++i) events_.push_back(cuda::create_event(true));
}

Timeline::~Timeline() {
  for (void* event : events_) cuda::destroy_event(event);
}

void Timeline::mark() {
  QUERN_CHECK(marked_ < capacity_, "timeline: more than ", capacity_, " marks");
  if (events_.empty()) {
    points_.push_back(std::chrono::steady_clock::now());
  } else {
    cuda::record_event(events_[marked_], stream_);
  }
  ++marked_;
}

std::vector<double> Timeline::intervals() const {
  std::vector<double> ms;
  if (marked_ < 2) return ms;
  if (!events_.empty()) cuda::synchronize_event(events_[marked_ - 1]);
  for (size_t i = 1; i < marked_; ++i) {
    ms.push_back(
        events_.empty()
            ? std::chrono::duration<double, std::milli>(points_[i] - points_[i - 1]).count()
            : cuda::elapsed_ms(events_[i - 1], events_[i]));
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
  return summary;
}

}  // namespace quern
