// A caching allocator with named allocations. Memory comes from a MemorySource in large segments
// that are split and merged; a freed block is available again at once.
//
// Allocations belong to the work of one stream, the home stream; its order makes reuse safe.
// Another stream may use an allocation under two rules:
//   1. Before its first use, that stream waits for an event that the home stream records after
//      allocate().
//   2. After its last use, the caller calls record_use(). The home stream then waits for that use
//      before any of the memory is allocated again.
// Neither rule affects the choice of memory, so addresses are the same in every run. CPU kernels
// run at the call, so their uses need no record.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/stream.h"

namespace quern {

// The source of segments: host memory, device memory, or a test's fake.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(int64_t bytes) = 0;      // nullptr when out of memory
  virtual void release(void* data) noexcept = 0;  // waits for the device's uses
  virtual std::string name() const = 0;           // "cpu", "cuda:0": for messages
  virtual std::string advice() const;             // the last line of OutOfMemory
};

std::unique_ptr<MemorySource> host_memory();                // 256-byte aligned
std::unique_ptr<MemorySource> device_memory(int index);     // cudaMalloc
std::unique_ptr<MemorySource> pinned_memory();              // cudaMallocHost
std::unique_ptr<MemorySource> no_memory(std::string name);  // addresses without memory

// A point that one stream reaches, and for which another waits: a CUDA event, or a test's fake.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  virtual void record(kernels::cuda::Stream stream) = 0;  // after the work enqueued there so far
  virtual void wait(kernels::cuda::Stream stream) = 0;    // later work there runs after the record
  virtual bool is_done() const = 0;  // whether the stream has reached the record; does not wait
};
using EventSource = std::function<std::unique_ptr<StreamEvent>()>;
std::unique_ptr<StreamEvent> device_event();

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

enum class MemoryCategory : uint8_t {
  parameters,   // weights, as they are updated and as ops read them
  gradients,    // of parameters
  optimizer,    // moments and other state between steps
  activations,  // made in the forward, kept for the backward: identified by MemoryRecorder
  workspace,    // scratch of kernels and libraries
  other,        // everything else: activations not kept, gradients of activations, batches
};

// The name and category of an allocation in reports. A name alone converts.
struct MemoryTag {
  MemoryTag(const char* name, MemoryCategory category = MemoryCategory::other)
      : name(name), category(category) {}

  const char* name;  // a string literal, or one that outlives the allocation
  MemoryCategory category;
};

struct Allocation {
  void* data = nullptr;
  int64_t bytes = 0;  // as requested
  const char* name = "";
  MemoryCategory category = MemoryCategory::other;
};

// Receives every allocation and release under the allocator's lock: must not allocate from it.
class AllocationObserver {
 public:
  virtual ~AllocationObserver() = default;
  virtual void on_allocate(const Allocation& allocation) = 0;
  virtual void on_release(const Allocation& allocation) = 0;
  // A segment was taken from the source or given back. Allocations lie inside segments.
  virtual void on_reserve(void* /*data*/, int64_t /*bytes*/) {}
  virtual void on_unreserve(void* /*data*/, int64_t /*bytes*/) {}
  // Runs before OutOfMemory is thrown: once it is caught, the live allocations are gone.
  virtual void on_out_of_memory(int64_t /*bytes*/, const char* /*name*/) {}
};

struct MemoryStats {
  int64_t allocated = 0;       // bytes in use now, as requested
  int64_t peak_allocated = 0;  // maximum of `allocated` since the last reset_peak
  int64_t reserved = 0;        // bytes held from the source
  int64_t segments = 0;
  int64_t allocations = 0;  // live now
};

// Segments reserved for one owner. A captured graph replays into the addresses of its capture, so
// its memory must not serve other allocations while it lives.
class MemoryPool;

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  // Without `events` only the home stream is supported, and record_use() does nothing.
  explicit Allocator(std::unique_ptr<MemorySource> source, kernels::cuda::Stream home = {},
                     EventSource events = nullptr);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // At least `bytes`, 256-byte aligned. OutOfMemory names the largest live allocations.
  void* allocate(int64_t bytes, MemoryTag tag);
  void release(void* data) noexcept;

  // Records that the work enqueued on `stream` so far uses the allocation at `data`. Call it after
  // the last such work, before the release. During a capture `stream` must have joined it.
  void record_use(void* data, kernels::cuda::Stream stream);
  // Makes the home stream wait for all recorded uses. Needed at both ends of a capture and before
  // each replay: a graph cannot wait for outside work, and a replay reuses the captured addresses.
  void wait_for_uses();
  void forget_uses() noexcept;  // after a failed capture, with the device idle

  // Allocations between begin_pool and end_pool come from `pool`, or from the common memory if it
  // is null. A pool outlives its allocations. Its segments come from `source`, or from the
  // allocator's source if null. Segment sizes of a given `source` do not depend on the free memory.
  std::shared_ptr<MemoryPool> make_pool(std::shared_ptr<MemorySource> source = nullptr);
  void begin_pool(std::shared_ptr<MemoryPool> pool);
  void end_pool();
  // Pins the current pool if make_pool made it: it keeps its memory even when the device runs out.
  // Needed before a capture, because replays use the captured addresses.
  void pin_pool();

  int64_t allocations_in(const MemoryPool& pool) const;  // live now

  void release_cached();  // returns entirely free segments to the source
  MemoryStats stats() const;
  void reset_peak();
  std::vector<Allocation> live() const;                          // largest first
  std::vector<std::pair<void*, int64_t>> held_segments() const;  // address and bytes, by address
  AllocationObserver* set_observer(AllocationObserver*);  // not owned; returns the previous one
  void set_limit(int64_t bytes);  // limit on memory from the source; 0: none
  // For tests: the next `allocations` succeed, then one runs out of memory; -1: none does. Returns
  // the previous number left.
  int64_t fail_after(int64_t allocations);

 private:
  friend class MemoryPool;
  struct Block;
  // The last use of an allocation, live or released, by a stream, at its address. No allocation
  // starts inside a released one whose uses remain: find_memory takes memory from the front of a
  // free block.
  using Uses = std::map<std::pair<char*, void*>, std::unique_ptr<StreamEvent>>;

  void wait_for_uses(char* data, int64_t bytes);
  void* find_memory(MemoryPool& pool, int64_t size);
  void* take_segment(MemoryPool& pool, int64_t bytes);
  std::string out_of_memory_message(int64_t bytes, const char* name) const;
  void release_free_segments(MemoryPool& pool) noexcept;

  mutable std::recursive_mutex mutex_;  // a pool may end inside release()
  std::shared_ptr<MemorySource> source_;
  kernels::cuda::Stream home_;
  EventSource events_;
  Uses uses_;  // not yet waited for by the home stream
  std::shared_ptr<MemoryPool> default_pool_;
  std::shared_ptr<MemoryPool> current_pool_;
  std::unordered_map<void*, std::pair<Allocation, std::shared_ptr<MemoryPool>>> live_;
  std::map<void*, int64_t> segments_;  // of all pools
  MemoryStats stats_;
  int64_t limit_ = 0;           // 0: none
  int64_t until_failure_ = -1;  // see fail_after
  AllocationObserver* observer_ = nullptr;
};

// During its lifetime, allocations come from `pool`. Does not nest.
class PoolScope {
 public:
  PoolScope(Allocator& allocator, std::shared_ptr<MemoryPool> pool) : allocator_(allocator) {
    allocator_.begin_pool(std::move(pool));
  }
  ~PoolScope() { allocator_.end_pool(); }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

 private:
  Allocator& allocator_;
};

}  // namespace quern
