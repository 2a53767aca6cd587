#include "profile/memory/memory_page.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "embedded/memory_page.h"
#include "io/atomic_file.h"
#include "io/html.h"

namespace quern {

namespace {

using nlohmann::json;

// Numbers the distinct places: many allocations share one.
class Places {
 public:
  size_t number(const Place& p) {
    const auto [found, added] = numbers_.try_emplace(p, numbers_.size());
    if (added) list_.push_back({p.phase, p.module, p.op, p.shapes, p.backward ? 1 : 0});
    return found->second;
  }
  const json& list() const { return list_; }

 private:
  std::map<Place, size_t> numbers_;
  json list_ = json::array();
};

json allocations_json(const MemoryTrace& trace, Places& places) {
  json list = json::array();
  int64_t before = 0;
  for (const TracedAllocation& a : trace.allocations) {
    const int64_t life = a.released < 0 ? -1 : a.released - a.allocated;
    list.push_back({a.allocated - before, a.bytes, life, static_cast<int>(a.category), a.name,
                    places.number(a.place)});
    before = a.allocated;
  }
  return list;
}

// The strings that the trace's numbers stand for.
json names_json(const MemoryTrace& trace) {
  int32_t last = 0;
  for (const TracedAllocation& a : trace.allocations) {
    const Place& p = a.place;
    last = std::max({last, a.name, p.phase, p.module, p.op, p.shapes});
  }
  for (const TracedPhase& phase : trace.phases) last = std::max(last, phase.name);
  if (trace.failure) last = std::max(last, trace.failure->name);
  json names = json::array();
  for (int32_t i = 0; i <= last; ++i) names.push_back(trace.names[i]);
  return names;
}

json trace_json(const MemoryTrace& trace, const std::string& subject) {
  json data;
  data["subject"] = subject;
  data["device"] = trace.device;
  data["end"] = trace.end;
  data["from"] = trace.complete_from;
  data["dropped"] = trace.dropped;
  data["stats"] = {{"reserved", trace.stats.reserved},
                   {"segments", trace.stats.segments},
                   {"allocations", trace.stats.allocations}};
  for (size_t i = 0; i < kMemoryCategories; ++i) {
    data["categories"].push_back(name_of(static_cast<MemoryCategory>(i)));
  }
  const MemoryPeak peak = peak_of(trace);
  data["peak"] = {{"time", peak.time}, {"bytes", peak.bytes}, {"by_category", peak.by_category}};
  data["segments"] = data["phases"] = json::array();
  for (const TracedSegment& s : trace.segments) {
    data["segments"].push_back({s.reserved, s.bytes, s.unreserved});
  }
  for (const TracedPhase& p : trace.phases) data["phases"].push_back({p.name, p.begin, p.end});
  if (trace.failure) {
    const TracedFailure& f = *trace.failure;
    data["failure"] = {{"time", f.time}, {"bytes", f.bytes}, {"name", f.name}};
  }
  data["names"] = names_json(trace);
  Places places;
  data["allocations"] = allocations_json(trace, places);
  data["places"] = places.list();
  return data;
}

}  // namespace

std::string memory_page(const MemoryTrace& trace, const std::string& subject) {
  using namespace embedded::memory_page;
  std::string script;
  for (const std::string_view part : {trace_js, timeline_js, moment_js, allocations_js, page_js}) {
    script += part;
  }
  const json data = trace_json(trace, subject);
  return fill_page(
      page_html,
      {{"@style@", page_css},
       {"@data@", json_in_script(data.dump(-1, ' ', false, json::error_handler_t::replace))},
       {"@script@", script}});
}

void write_memory_page(const MemoryTrace& trace, const std::string& subject,
                       const std::filesystem::path& path) {
  write_file_atomically(path, memory_page(trace, subject));
}

}  // namespace quern
