// What a step consists of: every nanosecond of it is either work of one kind or idle for one
// reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "profile/time/classify_kernel.h"
#include "profile/time/profile.h"

namespace quern {

// Why the GPU idles, told by what the host was doing. In a CPU profile: what is no op's time
// (between_ops, outside_phases).
enum class IdleKind : uint8_t {
  launch_call,      // the host was inside the CUDA call that launches the next kernel
  op,               // ... inside an op, on its way to a launch
  between_ops,      // ... inside a phase or module, in no op
  synchronisation,  // ... waiting for the GPU: it found out late that the work was done
  kernel_start,     // the next kernel had been launched: the GPU needs this long between kernels
  outside_phases,   // the host was outside all of these: between the steps' phases
};
inline constexpr size_t kIdleKinds = 6;
inline constexpr std::array kAllIdle{IdleKind::launch_call,  IdleKind::op,
                                     IdleKind::between_ops,  IdleKind::synchronisation,
                                     IdleKind::kernel_start, IdleKind::outside_phases};

const char* name_of(IdleKind kind);  // "between kernels already launched"

// Milliseconds of one step, the mean of all. Where kernels overlap, the one that began last counts.
struct StepSplit {
  double step_ms = 0.0;
  std::array<double, kWorkKinds> work_ms{};
  std::array<double, kIdleKinds> idle_ms{};
  double launch_ms = 0.0;  // that the host spent in calls that put work on the GPU, idle or not
  double launches = 0.0;   // such calls
  double wait_ms = 0.0;    // that the host spent waiting for the GPU

  double work() const;  // sums
  double idle() const;
  double of(WorkKind kind) const { return work_ms[static_cast<size_t>(kind)]; }
  double of(IdleKind kind) const { return idle_ms[static_cast<size_t>(kind)]; }
};

// Without steps: of all that was recorded, as one step.
StepSplit split_step(const Profile& profile);

}  // namespace quern
