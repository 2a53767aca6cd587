#include "dist/collective_ring.h"

#include "base/error.h"

namespace quern {

void CollectiveRing::add(const char* kind, const std::string& what, int64_t bytes,
                         Clock::time_point now) {
  ++added_;
  latest() = {added_, kind, what, bytes, now, CollectiveState::called};
}

std::string CollectiveRing::text(Clock::time_point now) const {
  std::string lines;
  for (size_t i = 1; i <= kRecords; ++i) {
    const Record& r = records_[place_of(added_ + static_cast<int64_t>(i))];
    if (r.number == 0) continue;
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - r.begun).count();
    lines += cat("\n  #", r.number, ' ', r.kind, " of ", r.what, ", ", r.bytes, " bytes, ",
                 ms / 1000, '.', ms % 1000 / 100, " s ago: ", name_of(r.state));
  }
  return lines.empty() ? "" : cat("\nThe latest collectives of this rank:", lines);
}

}  // namespace quern
