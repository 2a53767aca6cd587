// A profile as folded stacks, a line each: "forward;model;layers;0;mlp;linear 123". What
// flamegraph.pl, inferno and speedscope read.
#pragma once

#include <iosfwd>

#include "profile/time/profile.h"

namespace quern {

// Self times on the CPU: phase, the module's path part by part, ops. Microseconds, whole, of all
// steps together; stacks of less than half a microsecond are left out.
void write_cpu_stacks(const Profile& profile, std::ostream& out);

// The GPU's times: the same with the kernel on top. What no range is known of lies in "(unknown)".
void write_gpu_stacks(const Profile& profile, std::ostream& out);

}  // namespace quern
