#include "profile/time/range_times.h"

#include <algorithm>

namespace quern {

namespace {

// CUDA events around an op include the work of its children.
void take_out_children(const Profile& profile, std::vector<int64_t>& gpu_self) {
  const std::vector<int64_t> timed = gpu_self;
  for (size_t i = 0; i < timed.size(); ++i) {
    int32_t above = timed[i] > 0 ? profile.ranges[i].parent : -1;
    while (above >= 0 && timed[static_cast<size_t>(above)] == 0) {
      above = profile.ranges[static_cast<size_t>(above)].parent;
    }
    if (above >= 0) gpu_self[static_cast<size_t>(above)] -= timed[i];
  }
  for (int64_t& ns : gpu_self) ns = std::max<int64_t>(ns, 0);
}

// `total` starts as `self`; children come after their parents.
void add_to_parents(const Profile& profile, std::vector<int64_t>& total) {
  for (size_t i = profile.ranges.size(); i-- > 0;) {
    const int32_t parent = profile.ranges[i].parent;
    if (parent >= 0) total[static_cast<size_t>(parent)] += total[i];
  }
}

}  // namespace

InSteps::InSteps(const Profile& profile) : steps_(&profile.steps) {
  for (const CudaCall& call : profile.calls) {
    if (call.correlation != 0) called_[call.correlation] = call.begin;
  }
}

bool InSteps::near_step(int64_t time, int64_t error) const {
  if (steps_->empty()) return true;
  const auto after =
      std::upper_bound(steps_->begin(), steps_->end(), time,
                       [](int64_t t, const TimeSpan& step) { return t < step.begin; });
  if (after != steps_->end() && after->begin - time <= error) return true;
  return after != steps_->begin() && time <= std::prev(after)->end + error;
}

bool InSteps::operator()(int64_t host_time) const {
  return near_step(host_time, 0);
}

bool InSteps::operator()(const DeviceEvent& event) const {
  const auto call = called_.find(event.correlation);
  return call == called_.end() ? near_step(event.begin, kDeviceClockError)
                               : near_step(call->second, 0);
}

std::vector<bool> work_ranges(const Profile& profile) {
  std::vector<bool> work(profile.ranges.size());
  for (size_t i = 0; i < work.size(); ++i) {
    const RangeEvent& range = profile.ranges[i];
    work[i] = range.kind != RangeKind::module;
    if (range.parent < 0) continue;
    const auto parent = static_cast<size_t>(range.parent);
    if (profile.ranges[parent].kind == RangeKind::phase) work[parent] = false;
  }
  return work;
}

RangeTimes::RangeTimes(const Profile& profile)
    : calls(profile.ranges.size(), 0),
      cpu_total(profile.ranges.size(), 0),
      gpu_self(profile.ranges.size(), 0),
      steps(std::max<int64_t>(1, static_cast<int64_t>(profile.steps.size()))) {
  const InSteps in_steps(profile);
  for (const DeviceEvent& event : profile.device_events) {
    if (!in_steps(event)) continue;
    const int64_t ns = event.end - event.begin;
    (event.range < 0 ? gpu_outside : gpu_self[static_cast<size_t>(event.range)]) += ns;
  }
  if (profile.gpu_times == GpuTimes::events) take_out_children(profile, gpu_self);
  gpu_total = gpu_self;
  add_to_parents(profile, gpu_total);

  for (size_t i = 0; i < calls.size(); ++i) {
    const RangeEvent& range = profile.ranges[i];
    if (in_steps(range.begin)) {
      calls[i] = 1;
      cpu_total[i] = range.end - range.begin;
    } else if (profile.captured && gpu_total[i] > 0) {
      calls[i] = steps;
    }
  }
  cpu_self = cpu_total;
  for (size_t i = 0; i < calls.size(); ++i) {
    const int32_t parent = profile.ranges[i].parent;
    if (parent >= 0) cpu_self[static_cast<size_t>(parent)] -= cpu_total[i];
  }
  for (int64_t& ns : cpu_self) ns = std::max<int64_t>(ns, 0);
}

}  // namespace quern
