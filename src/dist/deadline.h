// Time limits of waits between ranks.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.h"

namespace quern {

// "10 s", "250 ms".
inline std::string in_words(std::chrono::milliseconds time) {
  const int64_t count = time.count();
  return count >= 1000 && count % 1000 == 0 ? cat(count / 1000, " s") : cat(count, " ms");
}

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A limit beyond a year counts as one: the clock's range is finite.
  explicit Deadline(std::chrono::milliseconds limit)
      : end_(Clock::now() + std::min(limit, std::chrono::milliseconds(std::chrono::hours(8760)))) {}

  Clock::time_point end() const { return end_; }
  bool passed() const { return Clock::now() >= end_; }
  // Rounded up; 0 when it has passed.
  std::chrono::milliseconds left() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    return std::max(left, std::chrono::milliseconds(0));
  }

 private:
  Clock::time_point end_;
};

}  // namespace quern
