// The few CUDA runtime calls that Quern makes, behind plain types: above src/tensor, only
// src/profile includes a CUDA header (CUPTI's). In a build without CUDA, device_count() is 0 and
// every other call into CUDA throws. Move-only types own streams, events, graphs and host memory;
// their destructors do not throw.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "base/stream.h"

namespace quern::cuda {

using kernels::cuda::Stream;

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t total_bytes = 0;             // device memory
  int64_t free_bytes = 0;              // now
  int64_t shared_bytes_per_block = 0;  // the most that a block may opt in to
  double memory_bandwidth = 0.0;  // bytes/s, from the memory clock and bus width; 0 when unknown
};

int device_count();
DeviceInfo device_info(int index);
std::string runtime_version();  // "13.0"
std::string driver_version();
void set_device(int index);

void* device_allocate(int64_t bytes);  // nullptr when the device has no room
void device_release(void* data) noexcept;
void* pinned_allocate(int64_t bytes);  // host memory that kernels can access; nullptr when full
void pinned_release(void* data) noexcept;

struct ReleaseHost {
  bool pinned = false;
  void operator()(void* data) const noexcept;
};
template <class T>
using HostArray = std::unique_ptr<T[], ReleaseHost>;
void* host_allocate(int64_t bytes, bool pinned);

// `count` elements of host memory, uninitialised. Copies from and to pinned memory run
// asynchronously with respect to the host; ordinary memory needs no GPU.
template <class T>
HostArray<T> host_array(int64_t count, bool pinned) {
  static_assert(std::is_trivially_copyable_v<T>);
  void* const data = host_allocate(count * static_cast<int64_t>(sizeof(T)), pinned);
  return HostArray<T>(static_cast<T*>(data), ReleaseHost{pinned});
}

// An owned stream; empty when default-constructed.
class OwnedStream {
 public:
  OwnedStream() = default;
  static OwnedStream create();
  explicit operator bool() const { return handle_ != nullptr; }
  operator Stream() const { return {handle_.get()}; }
  void finish() const noexcept;  // blocks the host; leaves errors to the next call

 private:
  struct Destroy {
    void operator()(void* stream) const noexcept;
  };
  std::unique_ptr<void, Destroy> handle_;
};

// An owned CUDA event; empty when default-constructed.
enum class EventKind { order, timing };
class Event {
 public:
  Event() = default;
  explicit Event(EventKind kind);
  explicit operator bool() const { return handle_ != nullptr; }

  void record(Stream stream);      // after the work enqueued there so far
  void wait(Stream stream) const;  // later work there runs after the record
  // Later work on `next` runs after the work enqueued on `first` so far.
  void order(Stream first, Stream next) {
    record(first);
    wait(next);
  }
  void synchronize() const;      // blocks the host; returns at once before the first record
  void finish() const noexcept;  // the same; leaves errors to the next call
  bool is_done() const;
  double ms_since(const Event& earlier) const;  // both: timing events, done

 private:
  struct Destroy {
    void operator()(void* event) const noexcept;
  };
  std::unique_ptr<void, Destroy> handle_;
};

void synchronize(Stream stream);
void synchronize_device();

void copy(void* dst, const void* src, int64_t bytes, Stream stream);  // any direction
void set_zero(void* dst, int64_t bytes, Stream stream);
// The stream writes `value` to pinned host memory, also in a capture, without a kernel. Does
// nothing where the driver cannot.
void write_number(uint32_t* host, uint32_t value, Stream stream);

struct DestroyGraph {
  void operator()(void* graph) const noexcept;
};
using ExecutableGraph = std::unique_ptr<void, DestroyGraph>;

// Work enqueued on the stream between begin_capture and end_capture is recorded, not run.
void begin_capture(Stream stream);
ExecutableGraph end_capture(Stream stream);
void abandon_capture(Stream stream) noexcept;
bool is_capturing(Stream stream);
void launch(const ExecutableGraph& graph, Stream stream);

// Named ranges in NVIDIA's profilers; free when none is attached.
void push_range(const char* name);
void pop_range();
void start_profiler();  // starts a profiler that waits for it
void stop_profiler();

}  // namespace quern::cuda
