// What a profiled stretch of work consists of: named ranges on the CPU, CUDA calls, what ran on the
// GPU, and memory in use. Recorded by Recorder (recorder.h); read by the tables, the trace and the
// folded stacks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tensor/context.h"

namespace quern {

// Strings by number: an event carries the number. Number 0 is "".
class Names {
 public:
  Names() { id(""); }
  int32_t id(std::string_view name);  // allocates for a new name alone
  const std::string& operator[](int32_t id) const { return names_[static_cast<size_t>(id)]; }

 private:
  // A text is found without being made a std::string.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

// All times are nanoseconds of one clock, CPU and GPU alike. Names, phases, modules and shapes are
// numbers in Profile::names.

struct RangeEvent {
  RangeKind kind = RangeKind::op;
  bool backward = false;  // an op's backward
  int32_t name = 0;       // the op, or the last part of a module's path
  int32_t phase = 0;      // the open phase, "" outside phases; of a phase itself: its name
  int32_t module = 0;     // the path of open modules, "model.layers.3.self_attn"; an op's backward
                          // has its forward's. Of a module itself: its own path
  int32_t shapes = 0;     // of an op's inputs, "(4, 512, 768) (768)"; "" where none were told
  int32_t parent = -1;    // the range it lies in; -1: none
  int64_t begin = 0, end = 0;
};

// A call of CUDA's runtime or driver that puts work on the GPU or waits for it.
struct CudaCall {
  int32_t name = 0;    // "cudaLaunchKernelExC"
  int32_t range = -1;  // the innermost range that was open
  int64_t begin = 0, end = 0;
  uint64_t correlation = 0;  // that of the device event it caused
};

enum class DeviceEventKind : uint8_t {
  kernel,
  copy,
  set,
  op,  // all that an op put on the stream, timed by CUDA events: where CUPTI is missing
};

struct DeviceEvent {
  DeviceEventKind kind = DeviceEventKind::kernel;
  int32_t name = 0;    // the kernel's, demangled; "copy host to device"; the op's
  int32_t range = -1;  // the innermost range that was open when it was launched; -1: unknown
  int32_t stream = 0;
  int64_t begin = 0, end = 0;
  int64_t bytes = 0;         // of copies and sets
  uint64_t correlation = 0;  // 0: of no call
};

struct MemoryPoint {
  int64_t time = 0;
  int64_t allocated = 0, reserved = 0;  // bytes, from then on
};

struct TimeSpan {
  int64_t begin = 0, end = 0;
};

enum class GpuTimes : uint8_t {
  none,    // nothing ran on a GPU
  cupti,   // every kernel and copy
  events,  // CUDA events around ops
};

struct Profile {
  Names names;
  std::string device;  // "NVIDIA H200", or the CPU
  std::string target;  // "train", "forward", "softmax"
  std::string note;    // what a reader must know: "CUPTI is missing (...): times of ops ..."
  bool on_gpu = false;
  // Steps were replayed as a CUDA graph: `ranges` are those of its capture, before the first step,
  // and device events of every step name them.
  bool captured = false;
  GpuTimes gpu_times = GpuTimes::none;
  std::vector<TimeSpan> steps;             // on the host, each to the end of its device work
  std::vector<RangeEvent> ranges;          // by begin: a parent comes before its children
  std::vector<CudaCall> calls;             // by begin
  std::vector<DeviceEvent> device_events;  // by begin
  std::vector<MemoryPoint> memory;         // by time
  double unprofiled_step_ms = 0.0;         // median without the recorder; 0: not measured
};

}  // namespace quern
