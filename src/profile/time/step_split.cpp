#include "profile/time/step_split.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>
#include <vector>

#include "profile/time/range_times.h"

namespace quern {

namespace {

constexpr size_t kNone = ~size_t{0};

// Overlapping layers: the one with the higher index hides the other.
struct Segment {
  int64_t begin = 0, end = 0;
  size_t layer = kNone;  // the topmost; kNone: no layer
};

// The visible parts of `layers` from `begin` to `end`, without gaps between the segments.
std::vector<Segment> seen(const std::vector<TimeSpan>& layers, int64_t begin, int64_t end) {
  struct Edge {
    int64_t time;
    size_t layer;
    bool opens;
  };
  std::vector<Edge> edges;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int64_t from = std::max(layers[i].begin, begin), to = std::min(layers[i].end, end);
    if (from >= to) continue;
    edges.push_back({from, i, true});
    edges.push_back({to, i, false});
  }
  std::sort(edges.begin(), edges.end(),
            [](const Edge& a, const Edge& b) { return a.time < b.time; });
  std::vector<Segment> segments;
  std::set<size_t> open;
  int64_t at = begin;
  const auto advance = [&](int64_t time) {
    if (time > at) segments.push_back({at, time, open.empty() ? kNone : *open.rbegin()});
    at = std::max(at, time);
  };
  for (const Edge& edge : edges) {
    advance(edge.time);
    if (edge.opens) {
      open.insert(edge.layer);
    } else {
      open.erase(edge.layer);
    }
  }
  advance(end);
  return segments;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// "cudaStreamSynchronize", "cuEventSynchronize", and a copy that is not asynchronous.
bool waits(const std::string& call) {
  return contains(call, "Synchronize") || (contains(call, "Memcpy") && !contains(call, "Async"));
}

// "cudaLaunchKernelExC", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync".
bool launches(const std::string& call) {
  return !waits(call) &&
         (contains(call, "Launch") || contains(call, "Memcpy") || contains(call, "Memset"));
}

class Splitter {
 public:
  explicit Splitter(const Profile& profile) : profile_(profile), work_(work_ranges(profile)) {
    steps_ = profile.steps;
    if (steps_.empty()) steps_.push_back(whole());
    for (const RangeEvent& range : profile.ranges) host_.push_back({range.begin, range.end});
    for (const CudaCall& call : profile.calls) {
      host_.push_back({call.begin, call.end});
      if (call.correlation != 0) told_[call.correlation] = call.end;
    }
    // Communication is the lowest layer.
    order_.resize(profile.device_events.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    const auto other = std::stable_partition(order_.begin(), order_.end(),
                                             [&](size_t event) { return communicates(event); });
    communications_ = static_cast<size_t>(other - order_.begin());
    for (const size_t event : order_) {
      device_.push_back({profile.device_events[event].begin, profile.device_events[event].end});
    }
  }

  StepSplit split() {
    for (const TimeSpan& step : steps_) {
      result_.step_ms += static_cast<double>(step.end - step.begin);
      host_now_ = seen(host_, step.begin, step.end);
      if (profile_.has_gpu_times()) {
        add_device(step);
      } else {
        add_host();
      }
      add_calls(step);
    }
    const double unit = 1e6 * static_cast<double>(steps_.size());
    for (double& ns : result_.work_ms) ns /= unit;
    for (double& ns : result_.idle_ms) ns /= unit;
    for (double* ns :
         {&result_.step_ms, &result_.communication_ms, &result_.launch_ms, &result_.wait_ms}) {
      *ns /= unit;
    }
    result_.launches /= static_cast<double>(steps_.size());
    return result_;
  }

 private:
  TimeSpan whole() const {
    std::vector<TimeSpan> all;
    for (const RangeEvent& range : profile_.ranges) all.push_back({range.begin, range.end});
    for (const DeviceEvent& event : profile_.device_events) all.push_back({event.begin, event.end});
    if (all.empty()) return {};
    TimeSpan span = all.front();
    for (const TimeSpan& one : all) {
      span = {std::min(span.begin, one.begin), std::max(span.end, one.end)};
    }
    return span;
  }

  bool communicates(size_t event) const {
    return work_kind(profile_, profile_.device_events[event]) == WorkKind::communication;
  }
  const DeviceEvent& event_of(size_t layer) const { return profile_.device_events[order_[layer]]; }

  void add(WorkKind kind, int64_t ns) {
    result_.work_ms[static_cast<size_t>(kind)] += static_cast<double>(ns);
  }
  void add(IdleKind kind, int64_t ns) {
    result_.idle_ms[static_cast<size_t>(kind)] += static_cast<double>(ns);
  }

  IdleKind host_kind(size_t layer) const {
    if (layer == kNone) return IdleKind::outside_phases;
    if (layer < profile_.ranges.size()) {
      return work_[layer] ? IdleKind::op : IdleKind::between_ops;
    }
    const CudaCall& call = profile_.calls[layer - profile_.ranges.size()];
    return waits(profile_.names[call.name]) ? IdleKind::synchronisation : IdleKind::launch_call;
  }

  void add_device(const TimeSpan& step) {
    const std::vector<TimeSpan> communication(
        device_.begin(), device_.begin() + static_cast<std::ptrdiff_t>(communications_));
    for (const Segment& now : seen(communication, step.begin, step.end)) {
      if (now.layer != kNone) result_.communication_ms += static_cast<double>(now.end - now.begin);
    }
    const std::vector<Segment> segments = seen(device_, step.begin, step.end);
    for (size_t i = 0; i < segments.size(); ++i) {
      const Segment& now = segments[i];
      if (now.layer != kNone) {
        add(work_kind(profile_, event_of(now.layer)), now.end - now.begin);
      } else {
        add_gap(now, i + 1 < segments.size() ? segments[i + 1].layer : kNone);
      }
    }
  }

  // Idle time before the next kernel's launch returns counts to the host, later time to the GPU.
  void add_gap(const Segment& gap, size_t next) {
    int64_t told = gap.end;
    if (next != kNone) {
      const auto found = told_.find(event_of(next).correlation);
      if (found != told_.end()) told = std::clamp(found->second, gap.begin, gap.end);
    }
    add(IdleKind::kernel_start, gap.end - told);
    auto segment = std::partition_point(host_now_.begin(), host_now_.end(),
                                        [&](const Segment& s) { return s.end <= gap.begin; });
    for (; segment != host_now_.end() && segment->begin < told; ++segment) {
      add(host_kind(segment->layer),
          std::min(segment->end, told) - std::max(segment->begin, gap.begin));
    }
  }

  void add_host() {
    for (const Segment& now : host_now_) {
      const IdleKind kind = host_kind(now.layer);
      if (kind == IdleKind::op) {
        const WorkKind work = op_kind(profile_.names[profile_.ranges[now.layer].name]);
        const int64_t ns = now.end - now.begin;
        add(work, ns);
        if (work == WorkKind::communication) result_.communication_ms += static_cast<double>(ns);
      } else {
        add(kind, now.end - now.begin);
      }
    }
  }

  // A call within another (the runtime calls the driver) is part of that one.
  void add_calls(const TimeSpan& step) {
    int64_t counted = step.begin;
    for (const CudaCall& call : profile_.calls) {
      if (call.begin < counted || call.begin >= step.end) continue;
      counted = call.end;
      const std::string& name = profile_.names[call.name];
      const auto ns = static_cast<double>(call.end - call.begin);
      if (waits(name)) result_.wait_ms += ns;
      if (!launches(name)) continue;
      result_.launch_ms += ns;
      result_.launches += 1.0;
    }
  }

  const Profile& profile_;
  std::vector<bool> work_;                       // whether each range is work: see work_ranges
  std::vector<TimeSpan> steps_, host_, device_;  // host_: the ranges, then the calls
  std::vector<size_t> order_;                    // the event of each layer of device_
  size_t communications_ = 0;                    // the first ones
  std::unordered_map<uint64_t, int64_t> told_;   // the end of the call, by correlation
  std::vector<Segment> host_now_;                // the host's activity in this step
  StepSplit result_;
};

}  // namespace

double StepSplit::work() const {
  return std::accumulate(work_ms.begin(), work_ms.end(), 0.0);
}

double StepSplit::idle() const {
  return std::accumulate(idle_ms.begin(), idle_ms.end(), 0.0);
}

StepSplit split_step(const Profile& profile) {
  return Splitter(profile).split();
}

}  // namespace quern
