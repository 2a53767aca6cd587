// The times of a profile's ranges within its steps: what every table of the summary adds up.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "profile/time/profile.h"

namespace quern {

// What happened in the profile's steps; without steps everything did. A device event is its call's,
// since the GPU's clock is known to some ten microseconds only; one of no call may be
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

// Whether each range is work by itself: an op, or a phase without ranges inside (the optimizer,
// whose kernels belong to no op).
std::vector<bool> work_ranges(const Profile& profile);

// One entry a range; nanoseconds, of all steps together. Ranges outside the steps have none, except
// that those under which a captured graph's kernels were launched have these kernels' GPU time, and
// run with every step.
struct RangeTimes {
  explicit RangeTimes(const Profile& profile);

  std::vector<int64_t> calls;                // in all steps: 1, 0, or the number of steps
  std::vector<int64_t> cpu_total, cpu_self;  // self: without child ranges
  std::vector<int64_t> gpu_total, gpu_self;  // self: what was launched by no child
  int64_t gpu_outside = 0;                   // of device events that belong to no range
  int64_t steps = 1;                         // to divide by
};

}  // namespace quern
