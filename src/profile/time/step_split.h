// The composition of a step: each nanosecond is work of one kind or idle for one reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "profile/time/classify_kernel.h"
#include "profile/time/profile.h"

namespace quern {

// Why the GPU idles, derived from the host's activity. In a CPU profile: the time outside ops
// (between_ops, outside_phases).
enum class IdleKind : uint8_t {
  launch_call,      // the host was inside the CUDA call that launches the next kernel
  op,               // ... inside an op, before the launch call
  between_ops,      // ... inside a phase or module, outside ops
  synchronisation,  // ... waiting for the GPU: it noticed the end of the work late
  kernel_start,     // the next kernel was already launched: the GPU's own start time
  outside_phases,   // the host was outside phases, modules and ops
};

template <>
inline constexpr std::array kNamesOf<IdleKind>{
    "launch overhead", "waiting for the host inside ops",  "waiting for the host between ops",
    "synchronisation", "between kernels already launched", "outside the phases"};

// Milliseconds a step, the mean of all steps. Among overlapping kernels the last to start counts.
// Communication counts only where it is exposed: where nothing else runs.
struct StepSplit {
  double step_ms = 0.0;
  std::array<double, kNamesOf<WorkKind>.size()> work_ms{};
  std::array<double, kNamesOf<IdleKind>.size()> idle_ms{};
  double communication_ms = 0.0;  // exposed or not
  double launch_ms = 0.0;         // host time in calls that put work on the GPU, idle or not
  double launches = 0.0;          // calls that put work on the GPU
  double wait_ms = 0.0;           // host time spent waiting for the GPU

  double work() const;  // sums
  double idle() const;
  double of(WorkKind kind) const { return work_ms[static_cast<size_t>(kind)]; }
  double of(IdleKind kind) const { return idle_ms[static_cast<size_t>(kind)]; }
};

// A profile without steps counts as one step.
StepSplit split_step(const Profile& profile);

}  // namespace quern
