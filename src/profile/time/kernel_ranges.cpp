#include "profile/time/kernel_ranges.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>

namespace quern {

namespace {

// "cudaMemcpyAsync_v3020" -> "cudaMemcpyAsync"; "_ptsz" marks the per-thread default stream.
std::string_view plain_name(std::string_view name) {
  if (name.ends_with("_ptsz")) name.remove_suffix(5);
  const size_t digits = name.find_last_not_of("0123456789");
  if (digits == std::string_view::npos || digits + 1 == name.size()) return name;
  const std::string_view stem = name.substr(0, digits + 1);
  return stem.ends_with("_v") ? stem.substr(0, stem.size() - 2) : name;
}

bool launches_or_waits(std::string_view name) {
  constexpr std::array<std::string_view, 8> kParts{"Launch", "Memcpy", "Memset", "Synchronize",
                                                   "Malloc", "Free",   "Alloc",  "WaitEvent"};
  return std::any_of(kParts.begin(), kParts.end(), [&](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
}

bool in_steps(const Profile& profile, int64_t time) {
  return !profile.steps.empty() && time >= profile.steps.front().begin &&
         time <= profile.steps.back().end;
}

struct Calls {
  std::vector<CudaCall> all;                      // the outermost
  std::vector<bool> wanted;                       // whether the profile shows each of them
  std::unordered_map<uint64_t, size_t> by_cause;  // correlation of a call, or of one inside it
};

Calls outermost_calls(Profile& profile, const std::vector<ApiRecord>& api,
                      const std::unordered_set<uint64_t>& causes) {
  Calls calls;
  const auto add = [&](const ApiRecord& record) {
    const std::string_view name = plain_name(record.name);
    calls.all.push_back({profile.names.id(name), range_at(profile.ranges, record.begin),
                         record.begin, record.end, record.correlation});
    calls.wanted.push_back(launches_or_waits(name));
  };
  for (const ApiRecord& record : api) {
    if (record.other_thread) continue;
    if (calls.all.empty() || record.end > calls.all.back().end) {
      add(record);
    }
    calls.by_cause.emplace(record.correlation, calls.all.size() - 1);
    if (causes.contains(record.correlation)) calls.wanted.back() = true;
  }
  for (const ApiRecord& record : api) {
    const bool known = calls.by_cause.contains(record.correlation);
    if (!record.other_thread || known || !causes.contains(record.correlation)) continue;
    add(record);
    calls.wanted.back() = true;
    calls.by_cause.emplace(record.correlation, calls.all.size() - 1);
  }
  return calls;
}

}  // namespace

// Ranges nest: if the range that began last has ended, only its ancestors can contain `time`.
int32_t range_at(const std::vector<RangeEvent>& ranges, int64_t time) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), time,
                       [](int64_t t, const RangeEvent& range) { return t < range.begin; });
  auto at = static_cast<int32_t>(after - ranges.begin()) - 1;
  while (at >= 0 && ranges[static_cast<size_t>(at)].end < time) {
    at = ranges[static_cast<size_t>(at)].parent;
  }
  return at;
}

int64_t attribute(Profile& profile, std::vector<ApiRecord> api, std::vector<DeviceRecord> device,
                  const std::unordered_map<uint64_t, int32_t>& node_ranges) {
  std::sort(api.begin(), api.end(), [](const ApiRecord& a, const ApiRecord& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;  // the outer one first
  });
  std::stable_sort(device.begin(), device.end(), [](const DeviceRecord& a, const DeviceRecord& b) {
    return a.event.begin < b.event.begin;
  });
  std::unordered_set<uint64_t> causes;
  for (const DeviceRecord& record : device) causes.insert(record.event.correlation);

  const Calls calls = outermost_calls(profile, api, causes);
  for (size_t i = 0; i < calls.all.size(); ++i) {
    if (calls.wanted[i] && in_steps(profile, calls.all[i].begin)) {
      profile.calls.push_back(calls.all[i]);
    }
  }
  std::stable_sort(profile.calls.begin(), profile.calls.end(),
                   [](const CudaCall& a, const CudaCall& b) { return a.begin < b.begin; });
  int64_t unknown = 0;
  for (const DeviceRecord& record : device) {
    DeviceEvent event = record.event;
    const auto cause = calls.by_cause.find(event.correlation);
    const CudaCall* call = cause == calls.by_cause.end() ? nullptr : &calls.all[cause->second];
    if (!in_steps(profile, call ? call->begin : event.begin)) continue;
    event.name = profile.names.id(record.name);
    event.correlation = call ? call->correlation : 0;
    event.range = call ? call->range : -1;
    bool known = call != nullptr;
    if (record.graph_node != 0) {
      const auto node = node_ranges.find(record.graph_node);
      known = known && node != node_ranges.end();
      event.range = node == node_ranges.end() ? -1 : node->second;
    }
    unknown += known ? 0 : 1;
    profile.device_events.push_back(event);
  }
  return unknown;
}

}  // namespace quern
