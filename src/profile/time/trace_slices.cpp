#include "profile/time/trace_slices.h"

#include <algorithm>

namespace quern {

namespace {

void sort_for_writing(std::vector<Slice>& slices) {
  for (Slice& slice : slices) slice.end = std::max(slice.begin, slice.end);
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
}

}  // namespace

void nest(std::vector<Slice>& slices) {
  sort_for_writing(slices);
  std::vector<int64_t> open;  // ends of the open slices
  for (Slice& slice : slices) {
    while (!open.empty() && open.back() <= slice.begin) open.pop_back();
    if (!open.empty()) slice.end = std::min(slice.end, open.back());
    open.push_back(slice.end);
  }
}

std::vector<std::vector<Slice>> lanes_of(std::vector<Slice> slices) {
  sort_for_writing(slices);
  std::vector<std::vector<Slice>> lanes;
  for (const Slice& slice : slices) {
    const auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const auto& taken) {
      return taken.back().end <= slice.begin + kClockError && taken.back().begin < slice.begin;
    });
    if (lane == lanes.end()) {
      lanes.push_back({slice});
      continue;
    }
    lane->back().end = std::min(lane->back().end, slice.begin);
    lane->push_back(slice);
  }
  return lanes;
}

}  // namespace quern
