// The few CUDA runtime calls that Quern makes, behind plain types: no file above src/tensor
// includes a CUDA header. In a build without CUDA, device_count() is 0 and every other function
// throws.
#pragma once

#include <cstdint>
#include <string>

namespace quern::cuda {

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
void* pinned_allocate(int64_t bytes);  // host memory that copies run from asynchronously
void pinned_release(void* data) noexcept;

void* create_stream();
void destroy_stream(void* stream) noexcept;
void synchronize(void* stream);
void synchronize_device();

// Any direction; asynchronous with respect to the host only from or to pinned memory.
void copy(void* dst, const void* src, int64_t bytes, void* stream);
void set_zero(void* dst, int64_t bytes, void* stream);

void* create_event(bool timing);
void destroy_event(void* event) noexcept;
void record_event(void* event, void* stream);
void wait_event(void* stream, void* event);  // the stream waits
void synchronize_event(void* event);         // the host waits
bool is_done(void* event);                   // what was on the stream before it has run
double elapsed_ms(void* start, void* stop);  // of two recorded timing events

// What is put on the stream between begin_capture and end_capture is recorded instead of run.
void begin_capture(void* stream);
void* end_capture(void* stream);  // an executable graph
void abandon_capture(void* stream) noexcept;
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph) noexcept;

// Ranges that NVIDIA's profilers show by name; free when none is attached.
void push_range(const char* name);
void pop_range();
void start_profiler();  // cudaProfilerStart: a profiler told to wait begins here
void stop_profiler();

}  // namespace quern::cuda
