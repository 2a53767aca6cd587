#include "tensor/cuda_runtime.h"

#include <new>

#include "base/error.h"
#ifdef QUERN_WITH_CUDA
#include <cudaTypedefs.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/primitives/driver_function.h"
#else
#include "tensor/without_cuda.h"
#endif

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

cudaStream_t raw(Stream stream) {
  return static_cast<cudaStream_t>(stream.handle);
}
cudaEvent_t raw(void* event) {
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

namespace {

template <class Allocate>
void* allocate_if_room(const char* call, const Allocate& allocate) {
  void* data = nullptr;
  const cudaError_t status = allocate(&data);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, call);
  return data;
}

}  // namespace

void* device_allocate(int64_t bytes) {
  return allocate_if_room(
      "cudaMalloc", [&](void** data) { return cudaMalloc(data, static_cast<size_t>(bytes)); });
}

void device_release(void* data) noexcept {
  cudaFree(data);
}

void* pinned_allocate(int64_t bytes) {
  return allocate_if_room("cudaMallocHost", [&](void** data) {
    return cudaMallocHost(data, static_cast<size_t>(bytes));
  });
}

void pinned_release(void* data) noexcept {
  cudaFreeHost(data);
}

void* host_allocate(int64_t bytes, bool pinned) {
  if (!pinned) return ::operator new(static_cast<size_t>(bytes));
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<size_t>(bytes)), "cudaMallocHost");
  return data;
}

void ReleaseHost::operator()(void* data) const noexcept {
  if (pinned) {
    cudaFreeHost(data);
  } else {
    ::operator delete(data);
  }
}

OwnedStream OwnedStream::create() {
  cudaStream_t handle = nullptr;
  check(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
  OwnedStream stream;
  stream.handle_.reset(handle);
  return stream;
}
void OwnedStream::Destroy::operator()(void* stream) const noexcept {
  cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}
void OwnedStream::finish() const noexcept {
  if (handle_) cudaStreamSynchronize(raw(*this));
}

void synchronize(Stream stream) {
  check(cudaStreamSynchronize(raw(stream)), "a kernel");
}
void synchronize_device() {
  check(cudaDeviceSynchronize(), "a kernel");
}

void copy(void* dst, const void* src, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes), cudaMemcpyDefault, raw(stream)),
        "cudaMemcpyAsync");
}

void set_zero(void* dst, int64_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), raw(stream)), "cudaMemsetAsync");
}

void write_number(uint32_t* host, uint32_t value, Stream stream) {
#ifdef QUERN_WITH_CUDA
  static const auto write = kernels::cuda::driver_function<PFN_cuStreamWriteValue32_v11070>(
      "cuStreamWriteValue32", 11070);
  if (write == nullptr) return;
  const CUresult status = write(raw(stream), reinterpret_cast<CUdeviceptr>(host), value, 0);
  if (status == CUDA_ERROR_NOT_SUPPORTED) return;
  QUERN_CHECK(status == CUDA_SUCCESS, "cuda: cuStreamWriteValue32 failed with error ", status);
#else
  cudaMemsetAsync(host, value, stream.handle);  // throws
#endif
}

Event::Event(EventKind kind) {
  cudaEvent_t event = nullptr;
  const bool timing = kind == EventKind::timing;
  check(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming),
        "cudaEventCreate");
  handle_.reset(event);
}
void Event::Destroy::operator()(void* event) const noexcept {
  cudaEventDestroy(raw(event));
}
void Event::record(Stream stream) {
  check(cudaEventRecord(raw(handle_.get()), raw(stream)), "cudaEventRecord");
}
void Event::wait(Stream stream) const {
  check(cudaStreamWaitEvent(raw(stream), raw(handle_.get()), 0), "cudaStreamWaitEvent");
}
void Event::synchronize() const {
  check(cudaEventSynchronize(raw(handle_.get())), "a kernel");
}
void Event::finish() const noexcept {
  if (handle_) cudaEventSynchronize(raw(handle_.get()));
}

bool Event::is_done() const {
  const cudaError_t status = cudaEventQuery(raw(handle_.get()));
  if (status == cudaErrorNotReady) return false;
  check(status, "a kernel");
  return true;
}

double Event::ms_since(const Event& earlier) const {
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, raw(earlier.handle_.get()), raw(handle_.get())),
        "cudaEventElapsedTime");
  return ms;
}

// Relaxed: the allocator may take a new segment from the driver during a capture.
void begin_capture(Stream stream) {
  check(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeRelaxed),
        "cudaStreamBeginCapture");
}

ExecutableGraph end_capture(Stream stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(raw(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "cudaGraphInstantiate");
  return ExecutableGraph(executable);
}

void abandon_capture(Stream stream) noexcept {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(raw(stream), &graph) == cudaSuccess) cudaGraphDestroy(graph);
  cudaGetLastError();  // the error that ended the capture is already an exception
}

bool is_capturing(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(raw(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void launch(const ExecutableGraph& graph, Stream stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.get()), raw(stream)), "cudaGraphLaunch");
}
void DestroyGraph::operator()(void* graph) const noexcept {
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
