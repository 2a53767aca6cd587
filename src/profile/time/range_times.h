// The times of a profile's ranges within its steps, on which all tables of the summary are based.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "profile/time/profile.h"

namespace quern {

// Whether an event lies in a step; true without steps. A device event counts by its call's time,
// since the GPU clock is accurate only to about ten microseconds. An event without a call may be
// kDeviceClockError off.
class InSteps {
 public:
  explicit InSteps(const Profile& profile);
  bool operator()(int64_t host_time) const;
  bool operator()(const DeviceEvent& event) const;

  static constexpr int64_t kDeviceClockError = 100'000;  // ns

 private:
  bool near_step(int64_t time, int64_t error) const;

  const std::vector<TimeSpan>* steps_;
  std::unordered_map<uint64_t, int64_t> called_;  // when, by correlation
};

// Whether each range is work itself: an op, or a phase without child ranges, such as the optimizer,
// whose kernels belong to no op.
std::vector<bool> work_ranges(const Profile& profile);

// One entry a range; nanoseconds, summed over all steps. Ranges outside the steps have zeros,
// except those in which a captured graph's kernels were launched: they get these kernels' GPU time
// and count as run in every step.
struct RangeTimes {
  explicit RangeTimes(const Profile& profile);

  std::vector<int64_t> calls;                // in all steps: 1, 0, or the number of steps
  std::vector<int64_t> cpu_total, cpu_self;  // self: without child ranges
  std::vector<int64_t> gpu_total, gpu_self;  // self: launched by no child
  int64_t gpu_outside = 0;                   // of device events without a range
  int64_t steps = 1;                         // at least 1: a divisor
};

}  // namespace quern
