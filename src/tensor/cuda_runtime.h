// The few CUDA runtime calls that Quern makes, behind plain types: no file above src/tensor
// includes a CUDA header. In a build without CUDA, device_count() is 0 and every other function
// throws. Streams, events, graphs and host memory are owned by move-only types whose destructors do
// not throw.
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
  int64_t shared_bytes_per_block = 0;  // what a block may opt in to
  double memory_bandwidth = 0.0;  // bytes/s, from the memory clock and bus width; 0 when unknown
};

int device_count();
DeviceInfo device_info(int index);
std::string runtime_version();  // "13.0"
std::string driver_version();
void set_device(int index);

void* device_allocate(int64_t bytes);  // nullptr when the device has no room
void device_release(void* data) noexcept;

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

// A stream of its owner's; none when made by default.
class OwnedStream {
 public:
  OwnedStream() = default;
  static OwnedStream create();
  explicit operator bool() const { return handle_ != nullptr; }
  operator Stream() const { return {handle_.get()}; }
  void finish() const noexcept;  // the host waits; errors are left to the next call

 private:
  struct Destroy {
    void operator()(void* stream) const noexcept;
  };
  std::unique_ptr<void, Destroy> handle_;
};

// A point that streams reach; none when made by default.
enum class EventKind { order, timing };
class Event {
 public:
  Event() = default;
  explicit Event(EventKind kind);
  explicit operator bool() const { return handle_ != nullptr; }

  void record(Stream stream);      // behind the work put there so far
  void wait(Stream stream) const;  // later work there runs behind the record
  void synchronize() const;        // the host waits; not at all before the first record
  void finish() const noexcept;    // the same; errors are left to the next call
  bool is_done() const;
  double ms_since(const Event& earlier) const;  // of two timing events that are done

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

struct DestroyGraph {
  void operator()(void* graph) const noexcept;
};
using ExecutableGraph = std::unique_ptr<void, DestroyGraph>;

// What is put on the stream between begin_capture and end_capture is recorded instead of run.
void begin_capture(Stream stream);
ExecutableGraph end_capture(Stream stream);
void abandon_capture(Stream stream) noexcept;
void launch(const ExecutableGraph& graph, Stream stream);

// Ranges that NVIDIA's profilers show by name; free when none is attached.
void push_range(const char* name);
void pop_range();
void start_profiler();  // cudaProfilerStart: a profiler told to wait begins here
void stop_profiler();

}  // namespace quern::cuda
