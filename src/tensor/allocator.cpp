#include "tensor/allocator.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

#include "base/round_up.h"
#include "tensor/cuda_runtime.h"

namespace quern {

namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kSmallSegment = int64_t{2} << 20;   // holds many small blocks
constexpr int64_t kLargeSegment = int64_t{32} << 20;  // holds blocks up to half its size
constexpr int64_t kSmallBlock = int64_t{1} << 20;

int64_t segment_bytes(int64_t size) {
  if (size <= kSmallBlock) return kSmallSegment;
  if (size <= kLargeSegment / 2) return kLargeSegment;
  return round_up(size, kSmallSegment);
}

class HostMemory : public MemorySource {
 public:
  void* allocate(int64_t bytes) override {
    return std::aligned_alloc(kAlignment, static_cast<size_t>(round_up(bytes, kAlignment)));
  }
  void release(void* data) noexcept override { std::free(data); }
  std::string name() const override { return "cpu"; }
};

class DeviceMemory : public MemorySource {
 public:
  explicit DeviceMemory(int index) : index_(index) {}
  void* allocate(int64_t bytes) override { return cuda::device_allocate(bytes); }
  void release(void* data) noexcept override { cuda::device_release(data); }
  std::string name() const override { return cat("cuda:", index_); }

 private:
  int index_;
};

class PinnedMemory : public MemorySource {
 public:
  void* allocate(int64_t bytes) override { return cuda::pinned_allocate(bytes); }
  void release(void* data) noexcept override { cuda::pinned_release(data); }
  std::string name() const override { return "the host, in memory that the GPU reads and writes"; }
  std::string advice() const override {
    return "Move less to the host: offload = moments or none, or offload_activations = false.";
  }
};

class DeviceEvent : public StreamEvent {
 public:
  void record(kernels::cuda::Stream stream) override { event_.record(stream); }
  void wait(kernels::cuda::Stream stream) override { event_.wait(stream); }
  bool is_done() const override { return event_.is_done(); }

 private:
  cuda::Event event_{cuda::EventKind::order};
};

// Addresses from a range that x86-64 and ARM never map: access to one ends the program.
class NoMemory : public MemorySource {
 public:
  explicit NoMemory(std::string name) : name_(std::move(name)) {}
  void* allocate(int64_t bytes) override {
    return reinterpret_cast<void*>(std::exchange(next_, next_ + round_up(bytes, kAlignment)));
  }
  void release(void*) noexcept override {}
  std::string name() const override { return name_; }

 private:
  std::string name_;
  int64_t next_ = int64_t{1} << 60;
};

std::string mebibytes(int64_t bytes) {
  const int64_t tenths = (bytes * 10) >> 20;
  return cat(tenths / 10, ".", tenths % 10, " MiB");
}

}  // namespace

std::string MemorySource::advice() const {
  return "Lower batch or ctx, set recompute = blocks, choose attention = flash and kernels = "
         "fused, "
         "or precision = bf16.";
}

std::unique_ptr<MemorySource> host_memory() {
  return std::make_unique<HostMemory>();
}
std::unique_ptr<MemorySource> device_memory(int index) {
  return std::make_unique<DeviceMemory>(index);
}
std::unique_ptr<MemorySource> pinned_memory() {
  return std::make_unique<PinnedMemory>();
}
std::unique_ptr<StreamEvent> device_event() {
  return std::make_unique<DeviceEvent>();
}
std::unique_ptr<MemorySource> no_memory(std::string name) {
  return std::make_unique<NoMemory>(std::move(name));
}

// A free or used run of bytes inside a segment. The blocks of a segment cover it in address order.
struct Allocator::Block {
  int64_t bytes = 0;
  char* segment = nullptr;
  bool free = true;
};

class MemoryPool {
 public:
  MemoryPool(std::weak_ptr<Allocator> owner, std::shared_ptr<MemorySource> source)
      : owner(std::move(owner)), source(std::move(source)) {}
  ~MemoryPool() {
    if (const auto allocator = owner.lock()) {
      const std::lock_guard lock(allocator->mutex_);
      allocator->release_free_segments(*this);
    }
  }

  std::weak_ptr<Allocator> owner;
  std::shared_ptr<MemorySource> source;
  std::map<char*, Allocator::Block> blocks;          // all blocks by address
  std::set<std::pair<int64_t, char*>> free_by_size;  // the free ones, for best fit by lower_bound
  std::map<char*, int64_t> segments;                 // address and bytes
  int64_t allocations = 0;                           // live now
  bool pinned = false;                               // a captured graph replays into it
};

Allocator::Allocator(std::unique_ptr<MemorySource> source, kernels::cuda::Stream home,
                     EventSource events)
    : source_(std::move(source)),
      home_(home),
      events_(std::move(events)),
      default_pool_(std::make_shared<MemoryPool>(std::weak_ptr<Allocator>(), source_)),
      current_pool_(default_pool_) {}

Allocator::~Allocator() {
  release_free_segments(*default_pool_);
}

std::shared_ptr<MemoryPool> Allocator::make_pool(std::shared_ptr<MemorySource> source) {
  return std::make_shared<MemoryPool>(weak_from_this(), source ? std::move(source) : source_);
}

void Allocator::begin_pool(std::shared_ptr<MemoryPool> pool) {
  const std::lock_guard lock(mutex_);
  current_pool_ = pool ? std::move(pool) : default_pool_;
}

void Allocator::end_pool() {
  const std::lock_guard lock(mutex_);
  current_pool_ = default_pool_;
}

void Allocator::pin_pool() {
  const std::lock_guard lock(mutex_);
  if (current_pool_ != default_pool_) current_pool_->pinned = true;
}

void* Allocator::take_segment(MemoryPool& pool, int64_t bytes) {
  if (limit_ > 0 && stats_.reserved + bytes > limit_) return nullptr;
  return pool.source->allocate(bytes);
}

// Best fit among the pool's free blocks, else a new segment. The rest becomes a free block.
void* Allocator::find_memory(MemoryPool& pool, int64_t size) {
  auto fit = pool.free_by_size.lower_bound({size, nullptr});
  if (fit == pool.free_by_size.end()) {
    int64_t bytes = segment_bytes(size);
    void* segment = take_segment(pool, bytes);
    if (!segment) {  // release the fragmented cache, and try again with less
      release_free_segments(*default_pool_);
      if (!pool.pinned) release_free_segments(pool);
      if (pool.source == source_) bytes = size;
      segment = take_segment(pool, bytes);
    }
    if (!segment) return nullptr;
    char* address = static_cast<char*>(segment);
    pool.segments[address] = bytes;
    pool.blocks[address] = Block{bytes, address, true};
    fit = pool.free_by_size.insert({bytes, address}).first;
    stats_.reserved += bytes;
    stats_.segments += 1;
    segments_[segment] = bytes;
    if (observer_) observer_->on_reserve(segment, bytes);
  }
  char* address = fit->second;
  wait_for_uses(address, size);
  pool.free_by_size.erase(fit);
  Block& block = pool.blocks[address];
  block.free = false;
  if (block.bytes > size) {
    char* rest = address + size;
    pool.blocks[rest] = Block{block.bytes - size, block.segment, true};
    pool.free_by_size.insert({block.bytes - size, rest});
    block.bytes = size;
  }
  return address;
}

void* Allocator::allocate(int64_t bytes, MemoryTag tag) {
  QUERN_CHECK(bytes >= 0, "allocate: ", tag.name, " has ", bytes, " bytes");
  const std::lock_guard lock(mutex_);
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), kAlignment);
  const bool fails = until_failure_ == 0;
  if (until_failure_ >= 0) until_failure_ -= 1;
  void* data = fails ? nullptr : find_memory(*current_pool_, size);
  if (!data) {
    if (observer_) observer_->on_out_of_memory(bytes, tag.name);
    throw OutOfMemory(out_of_memory_message(bytes, tag.name));
  }
  const Allocation allocation{data, bytes, tag.name, tag.category};
  live_.emplace(data, std::pair{allocation, current_pool_});
  stats_.allocated += bytes;
  stats_.peak_allocated = std::max(stats_.peak_allocated, stats_.allocated);
  stats_.allocations += 1;
  current_pool_->allocations += 1;
  if (observer_) observer_->on_allocate(allocation);
  return data;
}

void Allocator::release(void* data) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(data);
  if (found == live_.end()) return;
  const auto [allocation, pool] = found->second;
  live_.erase(found);
  stats_.allocated -= allocation.bytes;
  stats_.allocations -= 1;
  pool->allocations -= 1;
  if (observer_) observer_->on_release(allocation);

  auto here = pool->blocks.find(static_cast<char*>(data));
  here->second.free = true;
  const auto next = std::next(here);
  if (next != pool->blocks.end() && next->second.free &&
      next->second.segment == here->second.segment) {
    pool->free_by_size.erase({next->second.bytes, next->first});
    here->second.bytes += next->second.bytes;
    pool->blocks.erase(next);
  }
  if (here != pool->blocks.begin()) {
    const auto previous = std::prev(here);
    if (previous->second.free && previous->second.segment == here->second.segment) {
      pool->free_by_size.erase({previous->second.bytes, previous->first});
      previous->second.bytes += here->second.bytes;
      pool->blocks.erase(here);
      here = previous;
    }
  }
  pool->free_by_size.insert({here->second.bytes, here->first});
}

void Allocator::record_use(void* data, kernels::cuda::Stream stream) {
  if (!events_ || stream.handle == home_.handle) return;
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(data);
  QUERN_CHECK(found != live_.end(), "record_use: ", data, " is not an allocation");
  const std::pair key(static_cast<char*>(data), stream.handle);
  auto use = uses_.find(key);
  if (use == uses_.end()) use = uses_.emplace(key, events_()).first;
  use->second->record(stream);
}

void Allocator::wait_for_uses(char* data, int64_t bytes) {
  auto use = uses_.lower_bound({data, nullptr});
  while (use != uses_.end() && use->first.first < data + bytes) {
    use->second->wait(home_);
    use = uses_.erase(use);
  }
}

void Allocator::wait_for_uses() {
  const std::lock_guard lock(mutex_);
  for (auto use = uses_.begin(); use != uses_.end(); use = uses_.erase(use)) {
    use->second->wait(home_);
  }
}

void Allocator::forget_uses() noexcept {
  const std::lock_guard lock(mutex_);
  uses_.clear();
}

void Allocator::release_free_segments(MemoryPool& pool) noexcept {
  for (auto segment = pool.segments.begin(); segment != pool.segments.end();) {
    const auto block = pool.blocks.find(segment->first);
    if (!block->second.free || block->second.bytes != segment->second) {
      ++segment;
      continue;
    }
    pool.free_by_size.erase({block->second.bytes, block->first});
    pool.blocks.erase(block);
    if (observer_) observer_->on_unreserve(segment->first, segment->second);
    pool.source->release(segment->first);  // waits for the uses
    uses_.erase(uses_.lower_bound({segment->first, nullptr}),
                uses_.lower_bound({segment->first + segment->second, nullptr}));
    stats_.reserved -= segment->second;
    stats_.segments -= 1;
    segments_.erase(segment->first);
    segment = pool.segments.erase(segment);
  }
}

int64_t Allocator::allocations_in(const MemoryPool& pool) const {
  const std::lock_guard lock(mutex_);
  return pool.allocations;
}

void Allocator::release_cached() {
  const std::lock_guard lock(mutex_);
  release_free_segments(*default_pool_);
}

MemoryStats Allocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void Allocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_allocated = stats_.allocated;
}

std::vector<Allocation> Allocator::live() const {
  const std::lock_guard lock(mutex_);
  std::vector<Allocation> allocations;
  for (const auto& [data, entry] : live_) allocations.push_back(entry.first);
  std::sort(allocations.begin(), allocations.end(), [](const Allocation& a, const Allocation& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.data < b.data;
  });
  return allocations;
}

std::vector<std::pair<void*, int64_t>> Allocator::held_segments() const {
  const std::lock_guard lock(mutex_);
  return {segments_.begin(), segments_.end()};
}

AllocationObserver* Allocator::set_observer(AllocationObserver* observer) {
  const std::lock_guard lock(mutex_);
  return std::exchange(observer_, observer);
}

void Allocator::set_limit(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

int64_t Allocator::fail_after(int64_t allocations) {
  const std::lock_guard lock(mutex_);
  return std::exchange(until_failure_, allocations);
}

// Sums the live allocations by name, so that a thousand activations read as one line.
std::string Allocator::out_of_memory_message(int64_t bytes, const char* name) const {
  std::map<std::string, std::pair<int64_t, int>> by_name;
  for (const auto& [data, entry] : live_) {
    auto& [total, count] = by_name[entry.first.name];
    total += entry.first.bytes;
    count += 1;
  }
  std::vector<std::pair<std::string, std::pair<int64_t, int>>> rows(by_name.begin(), by_name.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  std::string message =
      cat("out of memory on ", source_->name(), ": ", name, " asked for ", mebibytes(bytes), ", ",
          mebibytes(stats_.allocated), " are in use\nThe largest by name:");
  for (size_t i = 0; i < rows.size() && i < 10; ++i) {
    const auto& [total, count] = rows[i].second;
    message += cat("\n  ", mebibytes(total), "  ", rows[i].first);
    if (count > 1) message += cat(" (", count, " tensors)");
  }
  return cat(message, "\n", source_->advice());
}

}  // namespace quern
