#include "profile/memory/memory_trace.h"

#include <algorithm>
#include <utility>

namespace quern {

std::vector<size_t> live_at(const MemoryTrace& trace, int64_t time) {
  std::vector<size_t> live;
  for (size_t i = 0; i < trace.allocations.size(); ++i) {
    const TracedAllocation& a = trace.allocations[i];
    if (a.allocated <= time && (a.released < 0 || a.released > time)) live.push_back(i);
  }
  std::stable_sort(live.begin(), live.end(), [&](size_t i, size_t j) {
    return trace.allocations[i].bytes > trace.allocations[j].bytes;
  });
  return live;
}

MemoryByCategory by_category(const MemoryTrace& trace, const std::vector<size_t>& allocations) {
  MemoryByCategory sums{};
  for (const size_t i : allocations) {
    const TracedAllocation& a = trace.allocations[i];
    sums[static_cast<size_t>(a.category)] += a.bytes;
  }
  return sums;
}

MemoryPeak peak_of(const MemoryTrace& trace) {
  std::vector<std::pair<int64_t, int64_t>> changes;  // time, bytes
  for (const TracedAllocation& a : trace.allocations) {
    changes.emplace_back(a.allocated, a.bytes);
    if (a.released >= 0) changes.emplace_back(a.released, -a.bytes);
  }
  std::sort(changes.begin(), changes.end());
  MemoryPeak peak;
  peak.time = trace.complete_from;
  int64_t in_use = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    const int64_t time = changes[i].first;
    in_use += changes[i].second;
    const bool settled = i + 1 == changes.size() || changes[i + 1].first > trace.complete_from;
    const bool last_of_its_time = i + 1 == changes.size() || changes[i + 1].first != time;
    if (!settled || !last_of_its_time || in_use <= peak.bytes) continue;
    peak.bytes = in_use;
    peak.time = std::max(time, trace.complete_from);
  }
  peak.live = live_at(trace, peak.time);
  peak.by_category = by_category(trace, peak.live);
  return peak;
}

}  // namespace quern
