// A caching allocator with named allocations. Memory comes from a MemorySource in large segments
// that are split and merged; a freed block is reused at once, which is right because all work of a
// Context runs on one stream (stream order is reuse order) and, on the CPU, at the call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"

namespace quern {

// Where segments come from: host memory, device memory, or a test's fake.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual void* allocate(int64_t bytes) = 0;  // nullptr when there is no room
  virtual void release(void* data) noexcept = 0;
  virtual std::string name() const = 0;  // "cpu", "cuda:0": for messages
};

std::unique_ptr<MemorySource> host_memory();             // 64-byte aligned
std::unique_ptr<MemorySource> device_memory(int index);  // cudaMalloc

class OutOfMemory : public Error {
 public:
  using Error::Error;
};

struct Allocation {
  void* data = nullptr;
  int64_t bytes = 0;      // as asked for
  const char* name = "";  // a string literal, or one that outlives the allocation
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
  explicit Allocator(std::unique_ptr<MemorySource> source);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // At least `bytes`, 256-byte aligned. Throws OutOfMemory with the largest live allocations by
  // name.
  void* allocate(int64_t bytes, const char* name);
  void release(void* data) noexcept;

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
  struct Segment;

  void* find_memory(MemoryPool& pool, int64_t size);
  void* take_segment(int64_t bytes);
  std::string out_of_memory_message(int64_t bytes, const char* name) const;
  void release_free_segments(MemoryPool& pool) noexcept;

  mutable std::recursive_mutex mutex_;  // a pool may end inside release()
  std::unique_ptr<MemorySource> source_;
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
