#include "profile/memory/memory_snapshot.h"

#include <algorithm>
#include <array>
#include <map>

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
    settings();
    out_.key("external_annotations");
    annotations();
    out_.end();
    return out_.take();
  }

 private:
  void integer(const char* key, int64_t value) {
    out_.key(key);
    out_.integer(value);
  }
  void text(const char* key, std::string_view value) {
    out_.key(key);
    out_.text(value);
  }
  int64_t microseconds(int64_t ns) const { return trace_.start_us + ns / 1000; }

  void frame(std::string_view filename, std::string_view name) {
    out_.begin_dict();
    text("filename", filename);
    integer("line", 0);
    text("name", name);
    out_.end();
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

  // Many allocations share a place: its frames are written once.
  void frames(int32_t name, const Place& place) {
    out_.key("frames");
    const std::array<int32_t, 6> key{name,     place.phase,  place.module,
                                     place.op, place.shapes, place.backward};
    const auto found = frames_.find(key);
    if (found != frames_.end()) return out_.again(found->second);
    new_frames(name, place);
    frames_.emplace(key, out_.remember());
  }

  void no_frames() {
    out_.key("frames");
    out_.begin_list();
    out_.end();
  }

  void block(int64_t address, int64_t size, const TracedAllocation* used) {
    out_.begin_dict();
    integer("address", address);
    integer("size", size);
    integer("requested_size", used ? used->bytes : 0);
    text("state", used ? "active_allocated" : "inactive");
    if (used) {
      frames(used->name, used->place);
    } else {
      no_frames();
    }
    out_.end();
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
    const auto by_address = [](const auto* x, const auto* y) { return x->address < y->address; };
    std::sort(held.begin(), held.end(), by_address);
    std::sort(live.begin(), live.end(), by_address);

    out_.begin_list();
    auto next = live.begin();
    for (const TracedSegment* s : held) {
      const uint64_t end = s->address + static_cast<uint64_t>(s->bytes);
      const auto first = next;
      while (next != live.end() && (*next)->address < end) ++next;
      segment(*s, {first, next});
    }
    QUERN_CHECK(next == live.end(), "memory snapshot: an allocation lies in no segment");
    out_.end();
  }

  void segment(const TracedSegment& s, const std::vector<const TracedAllocation*>& live) {
    int64_t allocated = 0, requested = 0;
    for (const TracedAllocation* a : live) {
      allocated += block_bytes(*a);
      requested += a->bytes;
    }
    out_.begin_dict();
    integer("device", 0);
    integer("address", static_cast<int64_t>(s.address));
    integer("total_size", s.bytes);
    integer("allocated_size", allocated);
    integer("active_size", allocated);
    integer("requested_size", requested);
    integer("stream", 0);
    text("segment_type", s.bytes <= kSmallSegment ? "small" : "large");
    out_.key("segment_pool_id");
    out_.tuple(0, 0);
    out_.key("is_expandable");
    out_.boolean(false);
    no_frames();
    out_.key("blocks");
    out_.begin_list();
    auto address = static_cast<int64_t>(s.address);
    const auto free_until = [&](int64_t end) {
      QUERN_CHECK(address <= end, "memory snapshot: the block at ", end, " lies in another");
      if (address < end) block(address, end - address, nullptr);
    };
    for (const TracedAllocation* a : live) {
      const auto begin = static_cast<int64_t>(a->address);
      free_until(begin);
      block(begin, block_bytes(*a), a);
      address = begin + block_bytes(*a);
    }
    free_until(static_cast<int64_t>(s.address) + s.bytes);
    out_.end();
    out_.end();
  }

  void device_traces() {
    out_.begin_list();
    out_.begin_list();
    for (const Event& event : events_of(trace_)) write_event(event);
    if (trace_.failure) out_of_memory(*trace_.failure);
    snapshot_taken();
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

  void begin_event(const char* action, int64_t size, int64_t time) {
    out_.begin_dict();
    text("action", action);
    integer("size", size);
    integer("stream", 0);
    integer("time_us", microseconds(time));
  }

  void allocation_event(const char* action, const Event& event) {
    const TracedAllocation& a = trace_.allocations[event.index];
    begin_event(action, a.bytes, event.time);
    integer("addr", static_cast<int64_t>(a.address));
    text("category", name_of(a.category));
    frames(a.name, a.place);
    out_.end();
  }

  void segment_event(const char* action, const Event& event) {
    const TracedSegment& s = trace_.segments[event.index];
    begin_event(action, s.bytes, event.time);
    integer("addr", static_cast<int64_t>(s.address));
    no_frames();
    out_.end();
  }

  void out_of_memory(const TracedFailure& failure) {
    begin_event("oom", failure.bytes, failure.time);
    integer("device_free", failure.device_free);
    frames(failure.name, failure.place);
    out_.end();
  }

  void snapshot_taken() {
    begin_event("snapshot", trace_.stats.allocated, trace_.end);
    integer("addr", 0);
    text("category", kUnknownCategory);
    no_frames();
    out_.end();
  }

  void settings() {
    out_.begin_dict();
    text("allocator", "quern");
    text("device", trace_.device);
    integer("peak_allocated", trace_.stats.peak_allocated);
    integer("events_dropped", trace_.dropped);
    out_.end();
  }

  void annotations() {
    out_.begin_list();
    for (const TracedPhase& phase : trace_.phases) {
      annotation(phase.name, "START", phase.begin);
      annotation(phase.name, "END", phase.end);
    }
    out_.end();
  }

  void annotation(int32_t name, const char* stage, int64_t time) {
    out_.begin_dict();
    integer("device", 0);
    text("name", trace_.names[name]);
    text("stage", stage);
    integer("time_us", microseconds(time));
    out_.end();
  }

  const MemoryTrace& trace_;
  PickleWriter out_;
  std::map<std::array<int32_t, 6>, uint32_t> frames_;
};

}  // namespace

std::string memory_snapshot(const MemoryTrace& trace) {
  return SnapshotWriter(trace).write();
}

void write_memory_snapshot(const MemoryTrace& trace, const std::filesystem::path& file) {
  write_file_atomically(file, memory_snapshot(trace));
}

}  // namespace quern
