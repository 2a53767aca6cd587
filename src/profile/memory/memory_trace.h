// The history of an allocator's memory: every allocation with its place and category, and the
// segments they lie in. Recorded by MemoryRecorder (memory_recorder.h); read by the snapshot, the
// page and the tables.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "profile/range_tracker.h"
#include "tensor/allocator.h"

namespace quern {

inline constexpr size_t kMemoryCategories = 6;
template <>
inline constexpr std::array kNamesOf<MemoryCategory>{"parameters",  "gradients", "optimizer",
                                                     "activations", "workspace", "other"};

struct TracedAllocation {
  uint64_t address = 0;
  int64_t bytes = 0;                     // as requested
  int64_t allocated = 0, released = -1;  // ns since the recording began; -1: never
  MemoryCategory category = MemoryCategory::other;
  int32_t name = 0;  // of the allocation; a number in MemoryTrace::names
  Place place;
};

struct TracedSegment {
  uint64_t address = 0;
  int64_t bytes = 0;
  int64_t reserved = 0, unreserved = -1;  // ns; -1: never
};

struct TracedPhase {
  int32_t name = 0;
  int64_t begin = 0, end = 0;  // ns
};

// An allocation that failed.
struct TracedFailure {
  int64_t time = 0;  // ns
  int64_t bytes = 0;
  int64_t device_free = 0;  // bytes free on the device; 0: unknown
  int32_t name = 0;
  Place place;
};

struct MemoryTrace {
  Names names;
  std::string device;                         // "cuda:0"
  std::vector<TracedAllocation> allocations;  // by time of allocation
  std::vector<TracedSegment> segments;        // by time
  std::vector<TracedPhase> phases;            // by begin
  int64_t end = 0;                            // ns: when the recording ended
  // The allocator's at the end. peak_allocated is since the recording began, if nothing was
  // dropped.
  MemoryStats stats;
  int64_t dropped = 0;                   // ended allocations beyond the history's limit
  int64_t complete_from = 0;             // ns: the trace is complete from here on
  int64_t start_us = 0;                  // the recording's begin, microseconds since 1970
  std::optional<TracedFailure> failure;  // the trace ends with it
};

// Bytes in use at one time, indexed by MemoryCategory.
using MemoryByCategory = std::array<int64_t, kMemoryCategories>;

struct MemoryPeak {
  int64_t time = 0, bytes = 0;
  MemoryByCategory by_category{};
  std::vector<size_t> live;  // allocations of the trace in use then, largest first
};

// The first time of the highest use, within the part where the trace is complete.
MemoryPeak peak_of(const MemoryTrace& trace);
// Allocations in use at `time` (ns), largest first, without those released at that time.
std::vector<size_t> live_at(const MemoryTrace& trace, int64_t time);
MemoryByCategory by_category(const MemoryTrace& trace, const std::vector<size_t>& allocations);

}  // namespace quern
