#include "profile/time/folded.h"

#include <algorithm>
#include <map>
#include <ostream>
#include <sstream>
#include <string>

#include "profile/time/classify_kernel.h"
#include "profile/time/range_times.h"

namespace quern {

namespace {

using Stacks = std::map<std::string, int64_t>;  // nanoseconds

// Escapes the separators of frames (`;`) and of stacks (the newline).
void push(std::string& stack, std::string frame) {
  std::replace(frame.begin(), frame.end(), ';', ',');
  std::replace(frame.begin(), frame.end(), '\n', ' ');
  if (!stack.empty()) stack += ';';
  stack += frame;
}

void push_parts(std::string& stack, const std::string& path) {
  std::istringstream parts(path);
  for (std::string part; std::getline(parts, part, '.');) push(stack, part);
}

// The range, if it is an op, and the ops around it, outermost first.
void push_ops(std::string& stack, const Profile& profile, const RangeEvent& range) {
  if (range.parent >= 0) {
    push_ops(stack, profile, profile.ranges[static_cast<size_t>(range.parent)]);
  }
  if (range.kind != RangeKind::op) return;
  push(stack, profile.name_of(range));
}

std::string stack_of(const Profile& profile, int32_t index) {
  if (index < 0) return "(unknown)";
  const RangeEvent& range = profile.ranges[static_cast<size_t>(index)];
  std::string stack;
  const std::string& phase = profile.names[range.phase];
  push(stack, phase.empty() ? "(no phase)" : phase);
  push_parts(stack, profile.names[range.module]);
  push_ops(stack, profile, range);
  return stack;
}

void write(const Stacks& stacks, std::ostream& out) {
  for (const auto& [stack, ns] : stacks) {
    const int64_t microseconds = (ns + 500) / 1000;
    if (microseconds > 0) out << stack << ' ' << microseconds << '\n';
  }
}

// `self`: the time of each range.
void write_ranges(const Profile& profile, const std::vector<int64_t>& self, std::ostream& out) {
  Stacks stacks;
  for (size_t i = 0; i < self.size(); ++i) {
    if (self[i] != 0) stacks[stack_of(profile, static_cast<int32_t>(i))] += self[i];
  }
  write(stacks, out);
}

}  // namespace

void write_cpu_stacks(const Profile& profile, std::ostream& out) {
  write_ranges(profile, RangeTimes(profile).cpu_self, out);
}

void write_gpu_stacks(const Profile& profile, std::ostream& out) {
  if (profile.gpu_times == GpuTimes::events) {  // whole ops, which include their children
    return write_ranges(profile, RangeTimes(profile).gpu_self, out);
  }
  Stacks stacks;
  const InSteps in_steps(profile);
  for (const DeviceEvent& event : profile.device_events) {
    if (!in_steps(event)) continue;
    std::string stack = stack_of(profile, event.range);
    push(stack, short_kernel_name(profile.names[event.name]));
    stacks[stack] += event.end - event.begin;
  }
  write(stacks, out);
}

}  // namespace quern
