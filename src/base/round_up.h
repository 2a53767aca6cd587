#pragma once

#include <cstdint>

namespace quern {

// value / divisor, rounded up; value 0 or more, divisor above 0.
constexpr int64_t ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

// `value` (0 or more), rounded up to a multiple of `multiple` (above 0).
constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return ceil_div(value, multiple) * multiple;
}

}  // namespace quern
