#pragma once

#include <cstdint>

namespace quern {

// The least multiple of `multiple` (above 0) that is not below `value` (0 or more).
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace quern
