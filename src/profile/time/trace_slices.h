// Prepares the slices of a thread for trace viewers, which require that they nest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quern {

struct Slice {
  int64_t begin = 0, end = 0;  // ns
  size_t event = 0;            // index of the slice's event
};

// Sorts for writing: by begin, the outer before the inner. A slice that outlasts the one it begins
// in, by the rounding of clocks, is cut to it.
void nest(std::vector<Slice>& slices);

// Splits slices that do not nest into lanes without overlaps, as few as possible. A slice may begin
// within kClockError before the end of another, which is then cut.
std::vector<std::vector<Slice>> lanes_of(std::vector<Slice> slices);
inline constexpr int64_t kClockError = 100;  // ns

}  // namespace quern
