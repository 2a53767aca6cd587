// A profile in Chrome's trace event format, which Perfetto (ui.perfetto.dev), chrome://tracing and
// speedscope open. ("Trace Event Format", Nat Duca and Dean Jackson, Google, 2016.)
#pragma once

#include <iosfwd>

#include "profile/time/profile.h"

namespace quern {

// Two processes: the host with the threads "steps", "phases, modules, ops" and "CUDA calls", and
// the GPU with a thread a stream (more where its kernels overlap). Complete events (X) that nest
// strictly on their thread, an arrow (s, f) from each call to what it put on the GPU, the memory in
// use as a counter (C; bytes), names (M). Times are microseconds since the first event, to the
// nanosecond. Streams its output: it holds only a few numbers an event.
void write_trace(const Profile& profile, std::ostream& out);

}  // namespace quern
