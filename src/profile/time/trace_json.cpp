#include "profile/time/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <unordered_map>
#include <vector>

#include "profile/time/classify_kernel.h"

namespace quern {

namespace {

// Thread ids are unique across processes: some viewers identify a thread by its id alone.
constexpr int kHost = 1, kGpu = 2;
constexpr int kSteps = 11, kRanges = 12, kCalls = 13, kFirstStream = 100;

using Json = nlohmann::ordered_json;

std::string dumped(const Json& json) {
  return json.is_null() ? "{}" : json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

void add_text(Json& args, const char* key, const std::string& text) {
  if (!text.empty()) args[key] = text;
}

// "12.345": nanoseconds as microseconds, exactly.
std::string microseconds(int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

// The zero of the trace. Viewers read times as doubles; small ones keep their nanoseconds.
int64_t first_time(const Profile& profile) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TimeSpan& step : profile.steps) first = std::min(first, step.begin);
  for (const RangeEvent& range : profile.ranges) first = std::min(first, range.begin);
  for (const CudaCall& call : profile.calls) first = std::min(first, call.begin);
  for (const DeviceEvent& event : profile.device_events) first = std::min(first, event.begin);
  for (const MemoryPoint& point : profile.memory) first = std::min(first, point.time);
  return first;
}

void sort_for_writing(std::vector<Slice>& slices) {
  for (Slice& slice : slices) slice.end = std::max(slice.begin, slice.end);
  std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
}

class TraceWriter {
 public:
  TraceWriter(const Profile& profile, std::ostream& out)
      : profile_(profile), out_(out), first_(first_time(profile)) {}

  void write() {
    Json data;
    add_text(data, "device", profile_.device);
    add_text(data, "target", profile_.target);
    add_text(data, "note", profile_.note);
    out_ << "{\"displayTimeUnit\":\"ns\",\"otherData\":" << dumped(data) << ",\"traceEvents\":[\n";
    name("process", kHost, 0, "quern " + profile_.target + ", host", 0);
    write_steps();
    write_ranges();
    write_calls();
    write_memory();
    write_streams();
    out_ << "\n]}\n";
  }

 private:
  void event(const std::string& body) {
    out_ << (some_ ? ",\n{" : "{") << body << '}';
    some_ = true;
  }

  std::string time(int64_t ns) const { return microseconds(ns - first_); }

  void metadata(const std::string& what, int pid, int tid, const Json& args) {
    event(fmt::format("\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{}", what, pid,
                      tid, dumped(args)));
  }

  // `what`: process or thread. `place`: among the others.
  void name(const std::string& what, int pid, int tid, const std::string& text, int64_t place) {
    metadata(what + "_name", pid, tid, {{"name", text}});
    metadata(what + "_sort_index", pid, tid, {{"sort_index", place}});
  }
  void name_thread(int pid, int tid, const std::string& text) {
    name("thread", pid, tid, text, tid);
  }

  void slice(const Slice& slice, int pid, int tid, const char* category, const std::string& name,
             const Json& args) {
    event(
        fmt::format("\"ph\":\"X\",\"cat\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{},"
                    "\"dur\":{},\"args\":{}",
                    category, dumped(name), pid, tid, time(slice.begin),
                    microseconds(slice.end - slice.begin), dumped(args)));
  }

  template <class Event>
  static std::vector<Slice> slices_of(const std::vector<Event>& events) {
    std::vector<Slice> slices;
    for (const Event& event : events) slices.push_back({event.begin, event.end, slices.size()});
    nest(slices);
    return slices;
  }

  void write_steps() {
    if (profile_.steps.empty()) return;
    name_thread(kHost, kSteps, "steps");
    for (const Slice& one : slices_of(profile_.steps)) {
      slice(one, kHost, kSteps, "step", fmt::format("step {}", one.event + 1), {});
    }
  }

  void add_place(Json& args, const RangeEvent& range) const {
    add_text(args, "phase", profile_.names[range.phase]);
    add_text(args, "module", profile_.names[range.module]);
    add_text(args, "shapes", profile_.names[range.shapes]);
  }

  void write_ranges() {
    if (profile_.ranges.empty()) return;
    name_thread(kHost, kRanges, "phases, modules, ops");
    for (const Slice& one : slices_of(profile_.ranges)) {
      const RangeEvent& range = profile_.ranges[one.event];
      Json args;
      add_place(args, range);
      slice(one, kHost, kRanges, name_of(range.kind), profile_.name_of(range), args);
    }
  }

  void write_calls() {
    if (profile_.calls.empty()) return;
    for (size_t i = 0; i < profile_.device_events.size(); ++i) {
      const uint64_t correlation = profile_.device_events[i].correlation;
      if (correlation != 0) caused_[correlation].push_back(i);
    }
    name_thread(kHost, kCalls, "CUDA calls");
    for (const Slice& one : slices_of(profile_.calls)) {
      const CudaCall& call = profile_.calls[one.event];
      Json args;
      if (call.correlation != 0) args["correlation"] = call.correlation;
      slice(one, kHost, kCalls, "cuda", profile_.names[call.name], args);
      if (one.end > one.begin) start_arrows(call);
    }
  }

  // Each device event of a call gets an arrow of its own: a graph launch has many. Viewers reject
  // arrows that point back in time or at a slice of zero length.
  void start_arrows(const CudaCall& call) {
    const auto found = caused_.find(call.correlation);
    if (found == caused_.end()) return;
    for (const size_t target : found->second) {
      const DeviceEvent& event = profile_.device_events[target];
      if (event.begin < call.begin || event.end <= event.begin) continue;
      const uint64_t id = arrow_to_.size();
      if (arrow_to_.emplace(target, id).second) write_arrow("s", "", kHost, kCalls, call.begin, id);
    }
  }

  void write_arrow(const char* phase, const char* binding, int pid, int tid, int64_t at,
                   uint64_t id) {
    event(
        fmt::format("\"ph\":\"{}\",{}\"cat\":\"launch\",\"name\":\"launch\",\"id\":{},\"pid\":{},"
                    "\"tid\":{},\"ts\":{}",
                    phase, binding, id, pid, tid, time(at)));
  }

  void write_memory() {
    for (size_t i = 0; i < profile_.memory.size(); ++i) {
      const MemoryPoint& point = profile_.memory[i];
      // The last of several points at one time counts.
      if (i + 1 < profile_.memory.size() && profile_.memory[i + 1].time <= point.time) continue;
      const Json args{{"allocated", point.allocated}, {"reserved", point.reserved}};
      event(fmt::format("\"ph\":\"C\",\"name\":\"memory in use\",\"pid\":{},\"ts\":{},\"args\":{}",
                        kHost, time(point.time), dumped(args)));
    }
  }

  void write_streams() {
    if (profile_.device_events.empty()) return;
    name("process", kGpu, 0, profile_.device.empty() ? "GPU" : profile_.device, 1);
    std::map<int32_t, std::vector<Slice>> streams;
    for (size_t i = 0; i < profile_.device_events.size(); ++i) {
      const DeviceEvent& one = profile_.device_events[i];
      streams[one.stream].push_back({one.begin, one.end, i});
    }
    int tid = kFirstStream;
    for (auto& [stream, slices] : streams) {
      if (profile_.gpu_times == GpuTimes::events) {  // ops, which nest
        nest(slices);
        write_lane(slices, tid++, fmt::format("stream {}, by op", stream));
        continue;
      }
      const std::vector<std::vector<Slice>> lanes = lanes_of(std::move(slices));
      for (size_t i = 0; i < lanes.size(); ++i) {
        write_lane(
            lanes[i], tid++,
            fmt::format("stream {}", stream) + (i == 0 ? "" : fmt::format(", overlapping {}", i)));
      }
    }
  }

  void write_lane(const std::vector<Slice>& slices, int tid, const std::string& name) {
    name_thread(kGpu, tid, name);
    for (const Slice& one : slices) write_device_event(one, tid);
  }

  void write_device_event(const Slice& one, int tid) {
    const DeviceEvent& event = profile_.device_events[one.event];
    const std::string& name = profile_.names[event.name];
    const std::string shown = short_kernel_name(name);
    Json args;
    if (shown != name) add_text(args, "kernel", name);
    if (event.range >= 0) {
      const RangeEvent& range = profile_.ranges[static_cast<size_t>(event.range)];
      if (range.kind == RangeKind::op) add_text(args, "op", profile_.name_of(range));
      add_place(args, range);
    }
    if (event.bytes > 0) args["bytes"] = event.bytes;
    if (event.correlation != 0) args["correlation"] = event.correlation;
    slice(one, kGpu, tid, name_of(event.kind), shown, args);
    const auto arrow = arrow_to_.find(one.event);
    if (arrow == arrow_to_.end()) return;
    write_arrow("f", "\"bp\":\"e\",", kGpu, tid, one.begin, arrow->second);
  }

  const Profile& profile_;
  std::ostream& out_;
  int64_t first_;
  bool some_ = false;
  std::unordered_map<uint64_t, std::vector<size_t>> caused_;  // device events by correlation
  std::unordered_map<size_t, uint64_t> arrow_to_;             // by device event: its arrow's id
};

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

void write_trace(const Profile& profile, std::ostream& out) {
  TraceWriter(profile, out).write();
}

}  // namespace quern
