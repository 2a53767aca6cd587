// A profile in Chrome's trace event format, which Perfetto (ui.perfetto.dev), chrome://tracing and
// speedscope open. ("Trace Event Format", Nat Duca and Dean Jackson, Google, 2016.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <vector>

#include "profile/time/profile.h"

namespace quern {

// Two processes: the host with the threads "steps", "phases, modules, ops" and "CUDA calls", and
// the GPU with a thread a stream (more where its kernels overlap). Complete events (X) that nest
// strictly on their thread, an arrow (s, f) from each call to what it put on the GPU, the memory in
// use as a counter (C; bytes), names (M). Times are microseconds since the first event, to the
// nanosecond. Streams its output: it holds only a few numbers an event.
void write_trace(const Profile& profile, std::ostream& out);

// A span of a thread. Viewers require that the slices of a thread nest.
struct Slice {
  int64_t begin = 0, end = 0;  // ns
  size_t event = 0;            // index of the slice's event
};

// Sorts for writing: by begin, the outer before the inner. A slice that outlasts its enclosing
// slice by clock rounding is cut to it.
void nest(std::vector<Slice>& slices);

// Splits slices that do not nest into lanes without overlaps, as few as possible. A slice may begin
// within kClockError before the end of another, which is then cut.
std::vector<std::vector<Slice>> lanes_of(std::vector<Slice> slices);
inline constexpr int64_t kClockError = 100;  // ns

}  // namespace quern
