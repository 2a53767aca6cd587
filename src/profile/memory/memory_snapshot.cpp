#include "profile/memory/memory_snapshot.h"

#include <algorithm>
#include <concepts>
#include <map>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "io/atomic_file.h"
#include "profile/memory/pickle_writer.h"

namespace quern {

namespace {

constexpr int64_t kBlockMultiple = 256;              // an Allocator rounds blocks up to it
constexpr int64_t kSmallSegment = int64_t{2} << 20;  // PyTorch calls larger ones large
constexpr const char* kUnknownCategory = "unknown";  // MemoryViz.js expects this word

int64_t block_bytes(const TracedAllocation& a) {
  return (std::max<int64_t>(a.bytes, 1) + kBlockMultiple - 1) / kBlockMultiple * kBlockMultiple;
}

enum class Action : uint8_t { release, unreserve, reserve, allocate };  // ordered at equal times

struct Event {
  int64_t time = 0;
  Action action = Action::allocate;
  size_t index = 0;  // of the allocation or segment

  friend auto operator<=>(const Event&, const Event&) = default;
};

std::vector<Event> events_of(const MemoryTrace& trace) {
  std::vector<Event> events;
  for (size_t i = 0; i < trace.allocations.size(); ++i) {
    const TracedAllocation& a = trace.allocations[i];
    events.push_back({a.allocated, Action::allocate, i});
    if (a.released >= 0) events.push_back({a.released, Action::release, i});
  }
  for (size_t i = 0; i < trace.segments.size(); ++i) {
    const TracedSegment& s = trace.segments[i];
    events.push_back({s.reserved, Action::reserve, i});
    if (s.unreserved >= 0) events.push_back({s.unreserved, Action::unreserve, i});
  }
  std::sort(events.begin(), events.end());
  return events;
}

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const MemoryTrace& trace) : trace_(trace) {}

  std::string write() {
    out_.begin_dict();
    out_.key("segments");
    segments();
    out_.key("device_traces");
    device_traces();
    out_.key("allocator_settings");
    dict("allocator", "quern", "device", trace_.device, "peak_allocated",
         trace_.stats.peak_allocated, "events_dropped", trace_.dropped);
    out_.key("external_annotations");
    annotations();
    out_.end();
    return out_.take();
  }

 private:
  using Frames = std::pair<int32_t, Place>;  // of an allocation: its name and place
  struct NoFrames {};

  template <std::integral T>
  void put(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      out_.boolean(value);
    } else {
      out_.integer(static_cast<int64_t>(value));
    }
  }
  void put(std::string_view value) { out_.text(value); }
  void put(NoFrames) {
    out_.begin_list();
    out_.end();
  }
  // Many allocations share a place: its frames are written once.
  void put(const Frames& frames) {
    const auto found = frames_.find(frames);
    if (found != frames_.end()) return out_.again(found->second);
    new_frames(frames.first, frames.second);
    frames_.emplace(frames, out_.remember());
  }

  // Items of the open dict: "key", value, "key", value, ...
  template <class Value, class... More>
  void items(const char* key, const Value& value, const More&... more) {
    out_.key(key);
    put(value);
    if constexpr (sizeof...(more) > 0) items(more...);
  }
  template <class... Items>
  void dict(const Items&... all) {
    out_.begin_dict();
    items(all...);
    out_.end();
  }

  int64_t microseconds(int64_t ns) const { return trace_.start_us + ns / 1000; }

  void frame(std::string_view filename, std::string_view name) {
    dict("filename", filename, "line", 0, "name", name);
  }

  // "model.layers.3.self_attn": self_attn, layers.3, model. A number stays with the name before it.
  void module_frames(const std::string& path) {
    for (size_t end = path.size(); end > 0;) {
      size_t begin = path.rfind('.', end - 1);
      while (begin != std::string::npos && begin > 0 && path[begin + 1] >= '0' &&
             path[begin + 1] <= '9') {
        begin = path.rfind('.', begin - 1);
      }
      const size_t first = begin == std::string::npos ? 0 : begin + 1;
      frame("module", std::string_view(path).substr(first, end - first));
      end = begin == std::string::npos ? 0 : begin;
    }
  }

  void new_frames(int32_t name, const Place& place) {
    const Names& names = trace_.names;
    out_.begin_list();
    frame("allocation", names[name]);
    if (place.op != 0) {
      std::string op = names[place.op];
      if (place.backward) op += " backward";
      if (place.shapes != 0) op += " " + names[place.shapes];
      frame("op", op);
    }
    module_frames(names[place.module]);
    if (place.phase != 0) frame("phase", names[place.phase]);
    out_.end();
  }

  void free_block(uint64_t begin, uint64_t end) {
    QUERN_CHECK(begin <= end, "memory snapshot: the block at ", end, " lies in another");
    if (begin == end) return;
    dict("address", begin, "size", end - begin, "requested_size", 0, "state", "inactive", "frames",
         NoFrames{});
  }

  void segments() {
    std::vector<const TracedSegment*> held;
    for (const TracedSegment& s : trace_.segments) {
      if (s.unreserved < 0) held.push_back(&s);
    }
    std::vector<const TracedAllocation*> live;
    for (const TracedAllocation& a : trace_.allocations) {
      if (a.released < 0) live.push_back(&a);
    }
    std::ranges::sort(held, {}, &TracedSegment::address);
    std::ranges::sort(live, {}, &TracedAllocation::address);

    out_.begin_list();
    auto next = live.begin();
    for (const TracedSegment* s : held) {
      const auto first = next;
      while (next != live.end() && (*next)->address < end_of(*s)) ++next;
      segment(*s, {first, next});
    }
    QUERN_CHECK(next == live.end(), "memory snapshot: an allocation lies in no segment");
    out_.end();
  }

  static uint64_t end_of(const TracedSegment& s) {
    return s.address + static_cast<uint64_t>(s.bytes);
  }

  void segment(const TracedSegment& s, const std::vector<const TracedAllocation*>& live) {
    int64_t allocated = 0, requested = 0;
    for (const TracedAllocation* a : live) {
      allocated += block_bytes(*a);
      requested += a->bytes;
    }
    out_.begin_dict();
    items("device", 0, "address", s.address, "total_size", s.bytes, "allocated_size", allocated,
          "active_size", allocated, "requested_size", requested, "stream", 0, "segment_type",
          s.bytes <= kSmallSegment ? "small" : "large");
    out_.key("segment_pool_id");
    out_.tuple(0, 0);
    items("is_expandable", false, "frames", NoFrames{});
    out_.key("blocks");
    out_.begin_list();
    uint64_t address = s.address;
    for (const TracedAllocation* a : live) {
      free_block(address, a->address);
      dict("address", a->address, "size", block_bytes(*a), "requested_size", a->bytes, "state",
           "active_allocated", "frames", Frames{a->name, a->place});
      address = a->address + static_cast<uint64_t>(block_bytes(*a));
    }
    free_block(address, end_of(s));
    out_.end();
    out_.end();
  }

  void device_traces() {
    out_.begin_list();
    out_.begin_list();
    for (const Event& event : events_of(trace_)) write_event(event);
    if (trace_.failure) {
      const TracedFailure& f = *trace_.failure;
      entry("oom", f.bytes, f.time, "device_free", f.device_free, "frames",
            Frames{f.name, f.place});
    }
    entry("snapshot", trace_.stats.allocated, trace_.end, "addr", 0, "category", kUnknownCategory,
          "frames", NoFrames{});
    out_.end();
    out_.end();
  }

  void write_event(const Event& event) {
    switch (event.action) {
      case Action::allocate: return allocation_event("alloc", event);
      case Action::release:
        allocation_event("free_requested", event);
        return allocation_event("free_completed", event);
      case Action::reserve: return segment_event("segment_alloc", event);
      case Action::unreserve: return segment_event("segment_free", event);
    }
    fail("memory snapshot: unknown action");
  }

  // `more`: the items of one kind of event.
  template <class... More>
  void entry(const char* action, int64_t size, int64_t time, const More&... more) {
    dict("action", action, "size", size, "stream", 0, "time_us", microseconds(time), more...);
  }

  void allocation_event(const char* action, const Event& event) {
    const TracedAllocation& a = trace_.allocations[event.index];
    entry(action, a.bytes, event.time, "addr", a.address, "category", name_of(a.category), "frames",
          Frames{a.name, a.place});
  }

  void segment_event(const char* action, const Event& event) {
    const TracedSegment& s = trace_.segments[event.index];
    entry(action, s.bytes, event.time, "addr", s.address, "frames", NoFrames{});
  }

  void annotations() {
    out_.begin_list();
    for (const TracedPhase& phase : trace_.phases) {
      for (const auto& [stage, time] : {std::pair{"START", phase.begin}, {"END", phase.end}}) {
        dict("device", 0, "name", trace_.names[phase.name], "stage", stage, "time_us",
             microseconds(time));
      }
    }
    out_.end();
  }

  const MemoryTrace& trace_;
  PickleWriter out_;
  std::map<Frames, uint32_t> frames_;
};

}  // namespace

std::string memory_snapshot(const MemoryTrace& trace) {
  return SnapshotWriter(trace).write();
}

void write_memory_snapshot(const MemoryTrace& trace, const std::filesystem::path& file) {
  write_file_atomically(file, memory_snapshot(trace));
}

}  // namespace quern
