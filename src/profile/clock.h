// The clock that all times of a profile use.
#pragma once

#include <chrono>
#include <cstdint>

namespace quern {

// Nanoseconds of the steady clock.
inline int64_t profile_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace quern
