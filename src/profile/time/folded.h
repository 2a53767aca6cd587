// A profile as folded stacks, one a line: "forward;model;layers;0;mlp;linear 123". flamegraph.pl,
// inferno and speedscope read this format.
#pragma once

#include <iosfwd>

#include "profile/time/profile.h"

namespace quern {

// Self times on the CPU: phase, the module's path part by part, ops. Whole microseconds, summed
// over all steps; stacks below half a microsecond are left out.
void write_cpu_stacks(const Profile& profile, std::ostream& out);

// GPU times, with the kernel as the innermost frame. Kernels without a range lie in "(unknown)".
void write_gpu_stacks(const Profile& profile, std::ostream& out);

}  // namespace quern
