#include "tensor/cuda_runtime.h"

#include "base/error.h"

#ifdef QUERN_WITH_CUDA

#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

namespace quern::cuda {

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that the next call does not report it again
  fail(cat("cuda: ", what, " failed: ", cudaGetErrorString(status)));
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

std::string version_text(int version) {
  return cat(version / 1000, ".", version % 1000 / 10);
}

cudaStream_t as_stream(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t as_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

}  // namespace

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;  // no driver, or no device
  }
  return count;
}

DeviceInfo device_info(int index) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  DeviceInfo info;
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.shared_bytes_per_block = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  size_t free_bytes = 0, total_bytes = 0;
  int current = 0;
  check(cudaGetDevice(&current), "cudaGetDevice");
  check(cudaSetDevice(index), "cudaSetDevice");
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  check(cudaSetDevice(current), "cudaSetDevice");
  info.free_bytes = static_cast<int64_t>(free_bytes);
  info.total_bytes = static_cast<int64_t>(total_bytes);
  const double clock_hz = 1e3 * attribute(cudaDevAttrMemoryClockRate, index);
  const double bus_bytes = attribute(cudaDevAttrGlobalMemoryBusWidth, index) / 8.0;
  info.memory_bandwidth = 2.0 * clock_hz * bus_bytes;  // double data rate
  return info;
}

std::string runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return version_text(version);
}

std::string driver_version() {
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  return version_text(version);
}

void set_device(int index) {
  check(cudaSetDevice(index), "cudaSetDevice");
}

void* device_allocate(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "cudaMalloc");
  return data;
}

void device_release(void* data) noexcept {
  cudaFree(data);
}

void* pinned_allocate(int64_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<size_t>(bytes)), "cudaMallocHost");
  return data;
}

void pinned_release(void* data) noexcept {
  cudaFreeHost(data);
}

void* create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}

void destroy_stream(void* stream) noexcept {
  cudaStreamDestroy(as_stream(stream));
}
void synchronize(void* stream) {
  check(cudaStreamSynchronize(as_stream(stream)), "a kernel");
}
void synchronize_device() {
  check(cudaDeviceSynchronize(), "a kernel");
}

void copy(void* dst, const void* src, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, as_stream(stream)),
        "cudaMemcpyAsync");
}

void set_zero(void* dst, int64_t bytes, void* stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), as_stream(stream)), "cudaMemsetAsync");
}

void* create_event(bool timing) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  return event;
}

void destroy_event(void* event) noexcept {
  cudaEventDestroy(as_event(event));
}
void record_event(void* event, void* stream) {
  check(cudaEventRecord(as_event(event), as_stream(stream)), "cudaEventRecord");
}
void wait_event(void* stream, void* event) {
  check(cudaStreamWaitEvent(as_stream(stream), as_event(event), 0), "cudaStreamWaitEvent");
}
void synchronize_event(void* event) {
  check(cudaEventSynchronize(as_event(event)), "a kernel");
}

bool is_done(void* event) {
  const cudaError_t status = cudaEventQuery(as_event(event));
  if (status == cudaErrorNotReady) return false;
  check(status, "a kernel");
  return true;
}

double elapsed_ms(void* start, void* stop) {
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, as_event(start), as_event(stop)), "cudaEventElapsedTime");
  return ms;
}

// Relaxed: the allocator may take a new segment from the driver meanwhile.
void begin_capture(void* stream) {
  check(cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture");
}

void* end_capture(void* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(as_stream(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return executable;
}

void abandon_capture(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(as_stream(stream), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();  // the error that ended the capture is under way as an exception
}

void launch_graph(void* graph, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), as_stream(stream)), "cudaGraphLaunch");
}

void destroy_graph(void* graph) noexcept {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

void push_range(const char* name) {
  nvtxRangePushA(name);
}
void pop_range() {
  nvtxRangePop();
}
void start_profiler() {
  check(cudaProfilerStart(), "cudaProfilerStart");
}
void stop_profiler() {
  check(cudaProfilerStop(), "cudaProfilerStop");
}

}  // namespace quern::cuda

#else  // a build without CUDA

namespace quern::cuda {

namespace {
[[noreturn]] void no_cuda() {
  fail(
      "cuda: this build has no CUDA code; build with QUERN_CUDA=ON or choose device = cpu "
      "(--device cpu)");
}
}  // namespace

int device_count() {
  return 0;
}
DeviceInfo device_info(int) {
  no_cuda();
}
std::string runtime_version() {
  no_cuda();
}
std::string driver_version() {
  no_cuda();
}
void set_device(int) {
  no_cuda();
}
void* device_allocate(int64_t) {
  no_cuda();
}
void device_release(void*) noexcept {}
void* pinned_allocate(int64_t) {
  no_cuda();
}
void pinned_release(void*) noexcept {}
void* create_stream() {
  no_cuda();
}
void destroy_stream(void*) noexcept {}
void synchronize(void*) {
  no_cuda();
}
void synchronize_device() {
  no_cuda();
}
void copy(void*, const void*, int64_t, void*) {
  no_cuda();
}
void set_zero(void*, int64_t, void*) {
  no_cuda();
}
void* create_event(bool) {
  no_cuda();
}
void destroy_event(void*) noexcept {}
void record_event(void*, void*) {
  no_cuda();
}
void wait_event(void*, void*) {
  no_cuda();
}
void synchronize_event(void*) {
  no_cuda();
}
bool is_done(void*) {
  no_cuda();
}
double elapsed_ms(void*, void*) {
  no_cuda();
}
void begin_capture(void*) {
  no_cuda();
}
void* end_capture(void*) {
  no_cuda();
}
void abandon_capture(void*) noexcept {}
void launch_graph(void*, void*) {
  no_cuda();
}
void destroy_graph(void*) noexcept {}
void push_range(const char*) {}
void pop_range() {}
void start_profiler() {}
void stop_profiler() {}

}  // namespace quern::cuda

#endif
