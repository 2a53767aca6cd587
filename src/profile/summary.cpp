#include "profile/summary.h"

#include <functional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "profile/range_times.h"

namespace quern {

namespace {

// Rows by key, in the order of their making.
class Rows {
 public:
  ProfileRow& operator[](const std::string& key) {
    const auto [found, added] = index_.emplace(key, rows_.size());
    if (added) rows_.emplace_back();
    return rows_[found->second];
  }
  ProfileRow& named(const std::string& name) {
    ProfileRow& row = (*this)[name];
    row.name = name;
    return row;
  }
  // Sums of nanoseconds in all steps become milliseconds of one. Rows of nothing go.
  std::vector<ProfileRow> of_a_step(int64_t steps) && {
    const auto n = static_cast<double>(steps);
    std::erase_if(rows_, [](const ProfileRow& row) {
      return row.calls == 0.0 && row.cpu_total == 0.0 && row.gpu_total == 0.0;
    });
    for (ProfileRow& row : rows_) {
      row.calls /= n;
      for (double* ns : {&row.cpu_total, &row.cpu_self, &row.gpu_total, &row.gpu_self}) {
        *ns /= n * 1e6;
      }
    }
    return std::move(rows_);
  }

 private:
  std::vector<ProfileRow> rows_;
  std::unordered_map<std::string, size_t> index_;
};

void add_self(ProfileRow& row, const RangeTimes& times, size_t range) {
  row.cpu_self += static_cast<double>(times.cpu_self[range]);
  row.gpu_self += static_cast<double>(times.gpu_self[range]);
}

void add_total(ProfileRow& row, const RangeTimes& times, size_t range) {
  row.cpu_total += static_cast<double>(times.cpu_total[range]);
  row.gpu_total += static_cast<double>(times.gpu_total[range]);
}

void add_outside(ProfileRow& row, double cpu, double gpu) {
  row.cpu_self += cpu;
  row.cpu_total += cpu;
  row.gpu_self += gpu;
  row.gpu_total += gpu;
}

std::string op_name(const Profile& profile, const RangeEvent& range) {
  return profile.names[range.name] + (range.backward ? " backward" : "");
}

// Ops (and what is work like them) or phases. A range within another of its row is part of that
// one's total.
std::vector<ProfileRow> rows_of_kind(const Profile& profile, RangeKind kind, bool by_shape) {
  const RangeTimes times(profile);
  const std::vector<bool> work = work_ranges(profile);
  const auto key_of = [&](const RangeEvent& range) {
    const std::string name =
        kind == RangeKind::op ? op_name(profile, range) : profile.names[range.name];
    return by_shape ? name + '\n' + profile.names[range.shapes] : name;
  };
  Rows rows;
  double cpu_outside = 0.0, gpu_outside = static_cast<double>(times.gpu_outside);
  std::vector<std::string> keys(profile.ranges.size());
  std::vector<bool> inside(profile.ranges.size());  // it is, or lies in, a range of this kind
  for (size_t i = 0; i < profile.ranges.size(); ++i) {
    const RangeEvent& range = profile.ranges[i];
    const bool own = kind == RangeKind::op ? work[i] : range.kind == kind;
    inside[i] = own || (range.parent >= 0 && inside[static_cast<size_t>(range.parent)]);
    if (!own) {
      // A phase's self time is without its modules and ops; of these the rows do not tell.
      if (kind == RangeKind::op || !inside[i]) {
        cpu_outside += static_cast<double>(times.cpu_self[i]);
        gpu_outside += static_cast<double>(times.gpu_self[i]);
      }
      continue;
    }
    keys[i] = key_of(range);
    ProfileRow& row = rows[keys[i]];
    row.name = keys[i].substr(0, keys[i].find('\n'));
    if (by_shape) row.shapes = profile.names[range.shapes];
    row.calls += static_cast<double>(times.calls[i]);
    add_self(row, times, i);
    int32_t above = range.parent;
    while (above >= 0 && keys[static_cast<size_t>(above)] != keys[i]) {
      above = profile.ranges[static_cast<size_t>(above)].parent;
    }
    if (above < 0) add_total(row, times, i);
  }
  add_outside(rows.named(kOutside), cpu_outside, gpu_outside);
  return std::move(rows).of_a_step(times.steps);
}

// Every range counts for its module's path and for those above it, where it lies: a backward is in
// no module's range, but has its forward's path.
std::vector<ProfileRow> rows_of_modules(const Profile& profile) {
  const RangeTimes times(profile);
  Rows rows;
  for (size_t i = 0; i < profile.ranges.size(); ++i) {
    const RangeEvent& range = profile.ranges[i];
    const auto cpu = static_cast<double>(times.cpu_self[i]);
    const auto gpu = static_cast<double>(times.gpu_self[i]);
    const std::string& path = profile.names[range.module];
    if (path.empty()) {
      add_outside(rows.named(kOutside), cpu, gpu);
      continue;
    }
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
      ProfileRow& above = rows.named(path.substr(0, dot));
      above.cpu_total += cpu;
      above.gpu_total += gpu;
    }
    ProfileRow& row = rows.named(path);
    add_outside(row, cpu, gpu);
    if (range.kind == RangeKind::module) row.calls += static_cast<double>(times.calls[i]);
  }
  add_outside(rows.named(kOutside), 0.0, static_cast<double>(times.gpu_outside));
  return std::move(rows).of_a_step(times.steps);
}

// What the calls took that put each correlation's events on the GPU, divided among these.
std::unordered_map<uint64_t, double> launch_times(const Profile& profile) {
  std::unordered_map<uint64_t, double> times;
  std::unordered_map<uint64_t, int64_t> events;
  for (const DeviceEvent& event : profile.device_events) ++events[event.correlation];
  for (const CudaCall& call : profile.calls) {
    const auto found = events.find(call.correlation);
    if (call.correlation == 0 || found == events.end()) continue;
    times[call.correlation] +=
        static_cast<double>(call.end - call.begin) / static_cast<double>(found->second);
  }
  return times;
}

std::vector<ProfileRow> rows_of_kernels(const Profile& profile) {
  const InSteps in_steps(profile);
  const std::unordered_map<uint64_t, double> launches = launch_times(profile);
  Rows rows;
  for (const DeviceEvent& event : profile.device_events) {
    if (event.kind == DeviceEventKind::op || !in_steps(event)) continue;
    const auto launch = launches.find(event.correlation);
    ProfileRow& row = rows.named(profile.names[event.name]);
    row.kind = work_kind(profile, event);
    row.calls += 1.0;
    add_outside(row, launch == launches.end() ? 0.0 : launch->second,
                static_cast<double>(event.end - event.begin));
  }
  return std::move(rows).of_a_step(RangeTimes(profile).steps);
}

}  // namespace

std::vector<ProfileRow> rows_by(const Profile& profile, GroupBy group) {
  switch (group) {
    case GroupBy::op: return rows_of_kind(profile, RangeKind::op, false);
    case GroupBy::shape: return rows_of_kind(profile, RangeKind::op, true);
    case GroupBy::phase: return rows_of_kind(profile, RangeKind::phase, false);
    case GroupBy::module: return rows_of_modules(profile);
    case GroupBy::kernel: return rows_of_kernels(profile);
  }
  fail("profile: unknown group");
}

}  // namespace quern
