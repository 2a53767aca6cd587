// Records a MemoryTrace: attached to the current Context's ranges and to its device's allocator.
// Cheap enough for a whole training run. A long run keeps only the end of its history.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "profile/memory/memory_trace.h"
#include "profile/range_tracker.h"
#include "tensor/allocator.h"

namespace quern {

namespace detail {
struct RecorderNames {
  Names recorder_names;
};
}  // namespace detail

// Attached from construction to destruction. Places are recorded only for allocations on the
// constructing thread. Releases may come from any thread.
class MemoryRecorder : private detail::RecorderNames,
                       public RangeTracker,
                       public AllocationObserver {
 public:
  // The number of ended allocations that are kept, 64 bytes each.
  static constexpr size_t kDefaultHistory = size_t{1} << 16;

  // Live allocations are recorded with time 0. Forwards to the allocator's previous observer.
  explicit MemoryRecorder(size_t history = kDefaultHistory);
  ~MemoryRecorder() override;
  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;

  // From the beginning, or as far back as the history reaches, to now. On the recorder's thread.
  MemoryTrace trace() const;

  // The trace up to the last OutOfMemory. Its allocations may be gone once the error is caught.
  // Empty when none was thrown since the last call.
  std::optional<MemoryTrace> take_failure();

  void on_begin(const Range& range) override;
  void on_end() override;
  void on_inputs(const char* op, uint64_t node, const std::vector<Shape>& inputs) override;

  void on_allocate(const Allocation& allocation) override;
  void on_release(const Allocation& allocation) override;
  void on_reserve(void* data, int64_t bytes) override;
  void on_unreserve(void* data, int64_t bytes) override;
  void on_out_of_memory(int64_t bytes, const char* name) override;

 private:
  template <class T>
  using ByAddress = std::unordered_map<const void*, T>;

  int64_t now();
  bool on_own_thread() const { return std::this_thread::get_id() == thread_; }
  template <class T>
  void end_entry(ByAddress<T>& live, std::deque<T>& ended, const void* data, int64_t T::*end);
  bool is_activation(const TracedAllocation& live, const TracedPhase& forward) const;

  std::shared_ptr<Allocator> allocator_;
  AllocationObserver* previous_ = nullptr;
  const std::string device_;
  const std::thread::id thread_;
  const size_t history_;
  const int64_t start_;  // of the steady clock, ns
  const int64_t start_us_;
  const int32_t forward_;  // the phase's name

  mutable std::mutex mutex_;  // guards the members below; never held in calls to the allocator
  int64_t last_ = -1;         // the last time returned by now()
  Names allocation_names_;    // the names that live_ and ended_ number
  ByAddress<TracedAllocation> live_;
  std::deque<TracedAllocation> ended_;  // by release
  ByAddress<TracedSegment> segments_;
  std::deque<TracedSegment> ended_segments_;
  std::vector<const void*> without_shapes_;  // made by the open op before its inputs are known
  std::vector<TracedPhase> open_phases_;
  std::deque<TracedPhase> ended_phases_;
  int64_t dropped_ = 0, complete_from_ = 0;

  std::optional<MemoryTrace> failure_;
};

}  // namespace quern
