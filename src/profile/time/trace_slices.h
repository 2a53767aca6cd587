// What a trace viewer asks of the slices of one thread: that they nest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quern {

struct Slice {
  int64_t begin = 0, end = 0;  // ns
  size_t event = 0;            // whose it is
};

// In the order of writing: by begin, the outer before the inner. A slice that ends after the one it
// begins in, by the rounding of clocks, is cut to it.
void nest(std::vector<Slice>& slices);

// Slices that do not nest in as few lanes as their overlaps need, each without any; a slice that
// begins within kClockError of another's end follows it, and that one is cut.
std::vector<std::vector<Slice>> lanes_of(std::vector<Slice> slices);
inline constexpr int64_t kClockError = 100;  // ns

}  // namespace quern
