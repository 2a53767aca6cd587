#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace quern {

namespace {

// The fraction of the way from `begin` to `end` done after `step`: 0 to 1.
double progress(double step, double begin, double end) {
  if (end <= begin) return step < end ? 0.0 : 1.0;
  return std::clamp((step - begin) / (end - begin), 0.0, 1.0);
}

}  // namespace

double Schedule::at(int64_t step) const {
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double here = static_cast<double>(step), last = static_cast<double>(steps);
  const double after_warmup = progress(here, static_cast<double>(warmup), last);
  switch (kind) {
    case ScheduleKind::constant: return lr;
    case ScheduleKind::cosine:
      return lr * (min_ratio +
                   (1.0 - min_ratio) * 0.5 * (1.0 + std::cos(std::numbers::pi * after_warmup)));
    case ScheduleKind::linear: return lr * (1.0 - (1.0 - min_ratio) * after_warmup);
    case ScheduleKind::wsd:
      return lr * (1.0 - (1.0 - min_ratio) * progress(here, last * (1.0 - decay_fraction), last));
  }
  fail("schedule: unknown kind");
}

}  // namespace quern
