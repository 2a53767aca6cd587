// A caching allocator with named allocations. Memory comes from a MemorySource in large segments
// that are split and merged; a freed block is reused at once.
//
// Streams. Memory is handed out to the work of one stream, the home stream: stream order is reuse
// order. Another stream may use it under two rules:
//   1. Before its first use, that stream waits for an event that the home stream records after
//      allocate().
//   2. After its last use, record_use() is called. Before any of the memory is handed out again,
//   the
//      home stream waits for that use.
// The choice of memory depends on neither, so addresses are the same in every run. On the CPU work
// runs at the call, and a use needs no record.
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

// Where segments come from: host memory, device memory, or a test's fake.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(int64_t bytes) = 0;      // nullptr when there is no room
  virtual void release(void* data) noexcept = 0;  // once the device no longer uses it
  virtual std::string name() const = 0;           // "cpu", "cuda:0": for messages
};

std::unique_ptr<MemorySource> host_memory();                // 64-byte aligned
std::unique_ptr<MemorySource> device_memory(int index);     // cudaMalloc
std::unique_ptr<MemorySource> no_memory(std::string name);  // addresses that nothing may touch

// A point that one stream reaches and another waits for: a CUDA event, or a test's fake.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  virtual void record(kernels::cuda::Stream stream) = 0;  // behind the work put there so far
  virtual void wait(kernels::cuda::Stream stream) = 0;    // later work there runs behind the record
};
using EventSource = std::function<std::unique_ptr<StreamEvent>()>;
std::unique_ptr<StreamEvent> device_event();

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

enum class MemoryCategory : uint8_t {
  parameters,   // master weights and their BF16 copies
  gradients,    // of parameters
  optimizer,    // moments and what the optimizer keeps between steps
  activations,  // made in the forward, kept for the backward: found by MemoryRecorder
  workspace,    // scratch of kernels and libraries
  other,        // everything else: activations not kept, gradients of activations, batches
};

// What reports call an allocation, and what it is for. A name alone converts.
struct MemoryTag {
  MemoryTag(const char* name, MemoryCategory category = MemoryCategory::other)
      : name(name), category(category) {}

  const char* name;  // a string literal, or one that outlives the allocation
  MemoryCategory category;
};

struct Allocation {
  void* data = nullptr;
  int64_t bytes = 0;  // as asked for
  const char* name = "";
  MemoryCategory category = MemoryCategory::other;
};

// Told of every allocation and release, under the allocator's lock: it must not allocate from it.
class AllocationObserver {
 public:
  virtual ~AllocationObserver() = default;
  virtual void on_allocate(const Allocation& allocation) = 0;
  virtual void on_release(const Allocation& allocation) = 0;
  // A segment was taken from the source, or given back to it: allocations lie inside segments.
  virtual void on_reserve(void* /*data*/, int64_t /*bytes*/) {}
  virtual void on_unreserve(void* /*data*/, int64_t /*bytes*/) {}
  // OutOfMemory is about to be thrown; what is live then is gone when it has been caught.
  virtual void on_out_of_memory(int64_t /*bytes*/, const char* /*name*/) {}
};

struct MemoryStats {
  int64_t allocated = 0;       // bytes in use now, as asked for
  int64_t peak_allocated = 0;  // most bytes in use since the last reset_peak
  int64_t reserved = 0;        // bytes held from the source
  int64_t segments = 0;
  int64_t allocations = 0;  // live now
};

// Segments that one owner keeps for itself: a captured graph replays into the addresses it was
// captured with, so its memory must not be handed to anybody else while it lives.
class MemoryPool;

class Allocator : public std::enable_shared_from_this<Allocator> {
 public:
  // Without events there is no stream but home's, and record_use() does nothing.
  explicit Allocator(std::unique_ptr<MemorySource> source, kernels::cuda::Stream home = {},
                     EventSource events = nullptr);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // At least `bytes`, 256-byte aligned. Throws OutOfMemory with the largest live allocations by
  // name.
  void* allocate(int64_t bytes, MemoryTag tag);
  void release(void* data) noexcept;

  // The work that `stream` was given so far uses the allocation at `data`; call it behind the last
  // such work, before the release. A use in a capture needs a stream that joined the capture.
  void record_use(void* data, kernels::cuda::Stream stream);
  // The home stream waits for all recorded uses. For both ends of a capture and before each replay:
  // a graph cannot wait for work outside it, and a replay writes where it was captured.
  void wait_for_uses();
  void forget_uses() noexcept;  // after a capture that failed; the device is idle

  // Allocations made between begin_pool and end_pool come from `pool`; from the common memory when
  // it is null. A pool outlives its allocations.
  std::shared_ptr<MemoryPool> make_pool();
  void begin_pool(std::shared_ptr<MemoryPool> pool);
  void end_pool();
  // From now on the pool in use, if it is one of make_pool's, keeps its memory also when the device
  // has no more: a capture begins, whose replays will use those addresses.
  void pin_pool();

  int64_t allocations_in(const MemoryPool& pool) const;  // live now

  void release_cached();  // gives wholly free segments back to the source
  MemoryStats stats() const;
  void reset_peak();
  std::vector<Allocation> live() const;                          // largest first
  std::vector<std::pair<void*, int64_t>> held_segments() const;  // address and bytes, by address
  AllocationObserver* set_observer(AllocationObserver*);  // not owned; returns the one before
  void set_limit(int64_t bytes);  // takes no more than this from the source; 0: all there is

 private:
  friend class MemoryPool;
  struct Block;
  // Uses of one allocation, live or released, by one stream. Those of different ones do not
  // overlap: memory handed out has none.
  struct Use {
    int64_t bytes = 0;
    std::unique_ptr<StreamEvent> event;
  };
  using Uses = std::map<std::pair<char*, void*>, Use>;  // by address and stream

  Uses::iterator first_use_in(char* data);
  void wait_for_uses(char* data, int64_t bytes);
  void* find_memory(MemoryPool& pool, int64_t size);
  void* take_segment(int64_t bytes);
  std::string out_of_memory_message(int64_t bytes, const char* name) const;
  void release_free_segments(MemoryPool& pool) noexcept;

  mutable std::recursive_mutex mutex_;  // a pool may end inside release()
  std::unique_ptr<MemorySource> source_;
  kernels::cuda::Stream home_;
  EventSource events_;
  Uses uses_;  // that the home stream has not waited for
  std::shared_ptr<MemoryPool> default_pool_;
  std::shared_ptr<MemoryPool> current_pool_;
  std::unordered_map<void*, std::pair<Allocation, std::shared_ptr<MemoryPool>>> live_;
  std::map<void*, int64_t> segments_;  // of all pools
  MemoryStats stats_;
  int64_t limit_ = 0;  // 0: none
  AllocationObserver* observer_ = nullptr;
};

// Allocations of its lifetime come from `pool`. Does not nest.
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
