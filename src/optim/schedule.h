// Learning-rate schedules.
#pragma once

#include <cstdint>

namespace quern {

enum class ScheduleKind { constant, cosine, linear, wsd };

// Linear warm-up over `warmup` steps, then: constant; half a cosine, or a line, down to min_ratio *
// lr when all steps are done (Loshchilov and Hutter, 2017); or wsd (Hu et al., 2024): constant,
// then a line over the last decay_fraction.
struct Schedule {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 1e-3;  // the peak
  double min_ratio = 0.1;
  int64_t warmup = 0;  // steps
  int64_t steps = 1;   // of the whole run
  double decay_fraction = 0.2;

  double at(int64_t step) const;  // for the step after `step` finished ones: at(0) is the first
};

}  // namespace quern
