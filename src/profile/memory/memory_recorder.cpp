#include "profile/memory/memory_recorder.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

int64_t microseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

template <class T>
void keep_newest(std::deque<T>& entries, size_t count) {
  while (entries.size() > count) entries.pop_front();
}

int64_t free_on_device() {
  const Device device = Context::current().device();
  if (!device.is_cuda()) return 0;
  try {
    return cuda::device_info(device.index).free_bytes;
  } catch (const Error&) {  // must not replace the OutOfMemory being thrown
    return 0;
  }
}

uint64_t address_of(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

// Live and ended entries together.
template <class Live, class T>
std::vector<T> all_of(const Live& live, const std::deque<T>& ended) {
  std::vector<T> all(ended.begin(), ended.end());
  for (const auto& [data, entry] : live) all.push_back(entry);
  return all;
}

}  // namespace

MemoryRecorder::MemoryRecorder(size_t history)
    : RangeTracker(recorder_names),
      allocator_(Context::current().allocator()),
      device_(cat(Context::current().device())),
      thread_(std::this_thread::get_id()),
      history_(history),
      start_(profile_clock()),
      start_us_(microseconds_since_1970()),
      forward_(recorder_names.id("forward")) {
  previous_ = allocator_->set_observer(this);
  const auto segments = allocator_->held_segments();
  const std::vector<Allocation> live = allocator_->live();
  const std::lock_guard lock(mutex_);
  for (const auto& [data, bytes] : segments) {
    segments_.emplace(data, TracedSegment{address_of(data), bytes});
  }
  for (const Allocation& a : live) {
    live_.emplace(a.data, TracedAllocation{.address = address_of(a.data),
                                           .bytes = a.bytes,
                                           .category = a.category,
                                           .name = allocation_names_.id(a.name),
                                           .place = {}});
  }
}

MemoryRecorder::~MemoryRecorder() {
  allocator_->set_observer(previous_);
}

// Times strictly increase, so that they order the events.
int64_t MemoryRecorder::now() {
  last_ = std::max(last_ + 1, profile_clock() - start_);
  return last_;
}

void MemoryRecorder::on_begin(const Range& range) {
  if (place().op == 0) without_shapes_.clear();
  RangeTracker::on_begin(range);
  if (range.kind != RangeKind::phase) return;
  const std::lock_guard lock(mutex_);
  open_phases_.push_back({place().phase, now(), 0});
}

void MemoryRecorder::on_end() {
  const bool phase = !open().empty() && open().back().kind == RangeKind::phase;
  RangeTracker::on_end();
  if (!phase) return;
  const std::lock_guard lock(mutex_);
  TracedPhase ended = open_phases_.back();
  open_phases_.pop_back();
  ended.end = now();
  if (ended.name == forward_) {
    for (auto& [data, a] : live_) {
      if (is_activation(a, ended)) a.category = MemoryCategory::activations;
    }
  }
  ended_phases_.push_back(ended);
  keep_newest(ended_phases_, history_);
}

void MemoryRecorder::on_inputs(const char* op, uint64_t node, const std::vector<Shape>& inputs) {
  RangeTracker::on_inputs(op, node, inputs);
  const Place now = place();
  const std::lock_guard lock(mutex_);
  for (const void* data : without_shapes_) {
    const auto found = live_.find(data);
    if (found == live_.end()) continue;
    Place& made = found->second.place;
    if (made.op == now.op && made.shapes == 0) made.shapes = now.shapes;
  }
  without_shapes_.clear();
}

// An untagged allocation that outlives its forward is an activation: the backward will use it.
bool MemoryRecorder::is_activation(const TracedAllocation& live, const TracedPhase& forward) const {
  return live.category == MemoryCategory::other && live.place.phase == forward_ &&
         live.allocated > forward.begin;
}

void MemoryRecorder::on_allocate(const Allocation& allocation) {
  if (previous_) previous_->on_allocate(allocation);
  const std::lock_guard lock(mutex_);
  TracedAllocation traced;
  traced.address = address_of(allocation.data);
  traced.bytes = allocation.bytes;
  traced.allocated = now();
  traced.category = allocation.category;
  traced.name = allocation_names_.id(allocation.name);
  if (on_own_thread()) {
    traced.place = place();
    if (traced.place.op != 0 && traced.place.shapes == 0) {
      without_shapes_.push_back(allocation.data);
    }
  }
  live_.insert_or_assign(allocation.data, traced);
}

template <class T>
void MemoryRecorder::end_entry(ByAddress<T>& live, std::deque<T>& ended, const void* data,
                               int64_t T::*end) {
  const auto found = live.find(data);
  if (found == live.end()) return;
  found->second.*end = now();
  ended.push_back(found->second);
  live.erase(found);
}

void MemoryRecorder::on_release(const Allocation& allocation) {
  if (previous_) previous_->on_release(allocation);
  const std::lock_guard lock(mutex_);
  end_entry(live_, ended_, allocation.data, &TracedAllocation::released);
  while (ended_.size() > history_) {
    complete_from_ = ended_.front().released;
    ended_.pop_front();
    dropped_ += 1;
  }
}

void MemoryRecorder::on_reserve(void* data, int64_t bytes) {
  if (previous_) previous_->on_reserve(data, bytes);
  const std::lock_guard lock(mutex_);
  segments_.insert_or_assign(data, TracedSegment{address_of(data), bytes, now(), -1});
}

void MemoryRecorder::on_unreserve(void* data, int64_t bytes) {
  if (previous_) previous_->on_unreserve(data, bytes);
  const std::lock_guard lock(mutex_);
  end_entry(segments_, ended_segments_, data, &TracedSegment::unreserved);
  keep_newest(ended_segments_, history_);
}

void MemoryRecorder::on_out_of_memory(int64_t bytes, const char* name) {
  if (on_own_thread()) {
    failure_ = trace();
    MemoryTrace& t = *failure_;
    t.failure = TracedFailure{t.end, bytes, free_on_device(), t.names.id(name), place()};
  }
  if (previous_) previous_->on_out_of_memory(bytes, name);
}

std::optional<MemoryTrace> MemoryRecorder::take_failure() {
  return std::exchange(failure_, std::nullopt);
}

MemoryTrace MemoryRecorder::trace() const {
  MemoryTrace t;
  t.device = device_;
  t.names = recorder_names;
  t.stats = allocator_->stats();
  t.start_us = start_us_;

  const std::lock_guard lock(mutex_);
  t.end = std::max(last_ + 1, profile_clock() - start_);
  t.dropped = dropped_;
  t.complete_from = complete_from_;
  t.segments = all_of(segments_, ended_segments_);
  t.phases.assign(ended_phases_.begin(), ended_phases_.end());
  for (TracedPhase phase : open_phases_) {
    phase.end = t.end;
    t.phases.push_back(phase);
  }
  t.allocations = all_of(live_, ended_);
  const bool in_forward = !open_phases_.empty() && open_phases_.back().name == forward_;
  for (TracedAllocation& a : t.allocations) {
    if (in_forward && a.released < 0 && is_activation(a, open_phases_.back())) {
      a.category = MemoryCategory::activations;  // a guess: the forward is still open
    }
    a.name = t.names.id(allocation_names_[a.name]);
  }
  std::ranges::sort(t.allocations, {},
                    [](const auto& a) { return std::pair(a.allocated, a.address); });
  std::ranges::sort(t.segments, {}, [](const auto& s) { return std::pair(s.reserved, s.address); });
  std::ranges::sort(t.phases, {}, &TracedPhase::begin);
  // The allocator's peak may be older than the recording, or have been reset during it.
  if (t.dropped == 0) t.stats.peak_allocated = peak_of(t).bytes;
  return t;
}

}  // namespace quern
