#include "profile/time/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "base/error.h"
#include "base/median.h"
#include "profile/time/range_times.h"

namespace quern {

namespace {

// Rows by key, in the order of their creation.
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
  // Turns sums over all steps, in ns, into milliseconds a step. Drops empty rows.
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

void add_outside(ProfileRow& row, double cpu, double gpu) {
  row.cpu_self += cpu;
  row.cpu_total += cpu;
  row.gpu_self += gpu;
  row.gpu_total += gpu;
}

// Rows of ops (with other work ranges) or of phases. A range nested in another of the same row is
// already part of that one's total.
std::vector<ProfileRow> rows_of_kind(const Profile& profile, RangeKind kind, bool by_shape) {
  const RangeTimes times(profile);
  const std::vector<bool> work = work_ranges(profile);
  const auto key_of = [&](const RangeEvent& range) {
    const std::string name = profile.name_of(range);
    return by_shape ? name + '\n' + profile.names[range.shapes] : name;
  };
  Rows rows;
  double cpu_outside = 0.0, gpu_outside = static_cast<double>(times.gpu_outside);
  std::vector<std::string> keys(profile.ranges.size());
  std::vector<bool> inside(profile.ranges.size());  // whether it is or lies in such a range
  for (size_t i = 0; i < profile.ranges.size(); ++i) {
    const RangeEvent& range = profile.ranges[i];
    const bool own = kind == RangeKind::op ? work[i] : range.kind == kind;
    inside[i] = own || (range.parent >= 0 && inside[static_cast<size_t>(range.parent)]);
    if (!own) {
      // A phase's self time excludes its modules and ops, which have no rows here.
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
    row.cpu_self += static_cast<double>(times.cpu_self[i]);
    row.gpu_self += static_cast<double>(times.gpu_self[i]);
    int32_t above = range.parent;
    while (above >= 0 && keys[static_cast<size_t>(above)] != keys[i]) {
      above = profile.ranges[static_cast<size_t>(above)].parent;
    }
    if (above >= 0) continue;
    row.cpu_total += static_cast<double>(times.cpu_total[i]);
    row.gpu_total += static_cast<double>(times.gpu_total[i]);
  }
  add_outside(rows.named(kOutside), cpu_outside, gpu_outside);
  return std::move(rows).of_a_step(times.steps);
}

// Each range counts for its module path and for all paths above. A backward lies in no module's
// range, but has its forward's path.
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

// The time of each correlation's launch calls, divided by the number of its device events.
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

namespace {

std::string percent(double part, double whole) {
  const double share = whole > 0.0 ? 100.0 * part / whole : 0.0;
  return fmt::format("{:.{}f} %", share, share < 9.95 ? 1 : 0);
}

// "5.02 ms", "12.3 us"
std::string time_text(double ms) {
  return ms < 0.1 ? fmt::format("{:.1f} us", ms * 1e3) : fmt::format("{:.2f} ms", ms);
}

struct Part {
  std::string name;
  double ms;
};

// "GEMM 61 %, attention 14 %": largest first, without parts below 0.05 %.
std::string shares(std::vector<Part> parts, double whole) {
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.ms > b.ms; });
  std::string text;
  for (const Part& part : parts) {
    if (part.ms < 0.0005 * whole) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.name, percent(part.ms, whole));
  }
  return text;
}

std::vector<Part> work_parts(const StepSplit& split, bool kernels) {
  std::vector<Part> parts;
  for (const WorkKind kind : values_of<WorkKind>()) {
    std::string name = name_of(kind);
    if (kind == WorkKind::memory_bound) name += kernels ? " kernels" : " ops";
    if (kind == WorkKind::other) name = "unclassified";
    parts.push_back({name, split.of(kind)});
  }
  return parts;
}

std::vector<Part> idle_parts(const StepSplit& split, bool on_gpu) {
  std::vector<Part> parts;
  for (const IdleKind kind : values_of<IdleKind>()) {
    // On the GPU, `between ops` describes what the host did; on the CPU it is time.
    const bool time = !on_gpu && kind == IdleKind::between_ops;
    parts.push_back({time ? "modules and phases outside ops" : name_of(kind), split.of(kind)});
  }
  return parts;
}

std::string gpu_words(const Profile& profile, const StepSplit& split) {
  const double step = split.step_ms;
  const bool kernels = profile.gpu_times == GpuTimes::cupti;
  std::string text =
      fmt::format("In a step's {} {} {} ({}): {}.\n", time_text(step),
                  kernels ? "the GPU computes" : "ops, with the gaps between their kernels, take",
                  time_text(split.work()), percent(split.work(), step),
                  shares(work_parts(split, kernels), step));
  text += fmt::format("{} {} ({})", kernels ? "It idles" : "Between them it idles",
                      time_text(split.idle()), percent(split.idle(), step));
  const std::string reasons = shares(idle_parts(split, true), step);
  text += reasons.empty() ? ".\n" : ": " + reasons + ".\n";
  if (split.launches > 0.0) {
    text += fmt::format(
        "Launches cost the host {} a step: {:.0f} calls of {}; it waits for the GPU {}.\n",
        time_text(split.launch_ms), split.launches, time_text(split.launch_ms / split.launches),
        time_text(split.wait_ms));
  }
  return text;
}

std::string communication_words(const Profile& profile, const StepSplit& split) {
  const double all = split.communication_ms, exposed = split.of(WorkKind::communication);
  if (all <= 0.0 || profile.gpu_times == GpuTimes::events) return "";
  const std::string part = exposed > 0.9995 * all
                               ? "all of it exposed"
                               : fmt::format("{} ({}) of it exposed", time_text(exposed),
                                             percent(exposed, split.step_ms));
  return fmt::format("Communication takes {} ({}), {}: without other work at the time.\n",
                     time_text(all), percent(all, split.step_ms), part);
}

std::string cpu_words(const StepSplit& split) {
  std::vector<Part> parts = work_parts(split, false);
  for (Part& part : idle_parts(split, false)) parts.push_back(std::move(part));
  return fmt::format("A step takes {} on the CPU: {}.\n", time_text(split.step_ms),
                     shares(std::move(parts), split.step_ms));
}

// The share of naive ops, including their child ops; forward only.
double naive_share(const Profile& profile, const char* prefix) {
  const bool gpu = profile.has_gpu_times();
  double naive = 0.0, all = 0.0;
  for (const ProfileRow& row : rows_by(profile, GroupBy::op)) {
    all += gpu ? row.gpu_self : row.cpu_self;
    if (row.name.starts_with(prefix)) naive += gpu ? row.gpu_total : row.cpu_total;
  }
  return all > 0.0 ? naive / all : 0.0;
}

// Gives advice only where the figures are clear.
std::string advice(const Profile& profile, const StepSplit& split) {
  constexpr double kMuchIdle = 0.2, kMuchWaiting = 0.1, kMuchCopied = 0.1, kMuchNaive = 0.05;
  const double step = split.step_ms;
  std::string text;
  if (step <= 0.0) return text;
  const bool gpu = profile.has_gpu_times();
  const double host =
      split.of(IdleKind::launch_call) + split.of(IdleKind::op) + split.of(IdleKind::between_ops);
  if (gpu && host > kMuchIdle * step && !profile.captured) {
    const bool train = profile.target == "train";
    text += fmt::format(
        "The GPU waits for the host: {}give each launch more work (a larger batch or "
        "context).\n",
        train ? "capture the step as a graph (--graph), or " : "");
  }
  if (gpu && split.of(IdleKind::synchronisation) > kMuchWaiting * step) {
    text += "Host and GPU wait for each other: read values back less often.\n";
  }
  if (split.of(WorkKind::copy) > kMuchCopied * step) {
    text += "Much is copied: keep tensors where they are used.\n";
  }
  if (naive_share(profile, "naive_attention") > kMuchNaive) {
    text += "Naive attention writes all its scores to memory: attention = flash does not.\n";
  }
  if (naive_share(profile, "naive_") - naive_share(profile, "naive_attention") > kMuchNaive) {
    text +=
        "Naive ops pass over memory once for each of their parts: kernels = fused does it "
        "once.\n";
  }
  return text;
}

// A median, as unprofiled_step_ms: a single stalled step must not count as the profiler's cost.
double median_step_ms(const Profile& profile) {
  std::vector<double> ms;
  for (const TimeSpan& step : profile.steps) {
    ms.push_back(static_cast<double>(step.end - step.begin) / 1e6);
  }
  return median(std::move(ms));
}

std::string profiling_cost(const Profile& profile) {
  if (profile.unprofiled_step_ms <= 0.0 || profile.steps.empty()) return "";
  const double with = median_step_ms(profile), without = profile.unprofiled_step_ms;
  const std::string added = with > without ? fmt::format("{:.1f} %", 100.0 * (with / without - 1.0))
                                           : "nothing that can be measured";
  return fmt::format("The median step takes {} with the profiler, {} without: it adds {}.\n",
                     time_text(with), time_text(without), added);
}

std::string memory_words(const Profile& profile) {
  int64_t allocated = 0, reserved = 0;
  for (const MemoryPoint& point : profile.memory) {
    allocated = std::max(allocated, point.allocated);
    reserved = std::max(reserved, point.reserved);
  }
  if (allocated == 0) return "";
  return fmt::format("At most {:.1f} MiB of memory are in use, {:.1f} MiB reserved.\n",
                     mebibytes(allocated), mebibytes(reserved));
}

}  // namespace

std::string summary_in_words(const Profile& profile) {
  const StepSplit split = split_step(profile);
  std::string text;
  if (!profile.note.empty()) text += "Note: " + profile.note + "\n";
  if (profile.gpu_times == GpuTimes::events &&
      profile.note.find("CUDA events") == std::string::npos) {
    text += "CUDA events timed whole ops: there are no times of single kernels.\n";
  }
  if (split.step_ms <= 0.0) return text + "Nothing was recorded.\n";
  const bool gpu = profile.has_gpu_times();
  text += gpu ? gpu_words(profile, split) : cpu_words(split);
  text += communication_words(profile, split) + profiling_cost(profile) + memory_words(profile);
  return text + advice(profile, split);
}

}  // namespace quern
