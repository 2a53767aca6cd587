#pragma once

#include <cstdint>

namespace quern {

// The least integer that is not below value / divisor; value 0 or more, divisor above 0.
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// The least multiple of `multiple` (above 0) that is not below `value` (0 or more).
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace quern
