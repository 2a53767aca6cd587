// The contents of a profile: named ranges on the CPU, CUDA calls, GPU activity, and memory in use.
// Recorded by Recorder (recorder.h); read by the tables, the trace and the folded stacks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/enum_names.h"
#include "tensor/context.h"

namespace quern {

// Strings by number: an event carries the number. Number 0 is "".
class Names {
 public:
  Names() { id(""); }
  int32_t id(std::string_view name);  // allocates only for a new name
  const std::string& operator[](int32_t id) const { return names_[static_cast<size_t>(id)]; }

 private:
  // Transparent, so that a lookup makes no std::string.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

// Nanoseconds of the steady clock, which all times of a profile use.
inline int64_t profile_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <>
inline constexpr std::array kNamesOf<RangeKind>{"phase", "module", "op"};

// All times are nanoseconds of one clock, CPU and GPU alike. Names, phases, modules and shapes are
// numbers in Profile::names.

struct RangeEvent {
  RangeKind kind = RangeKind::op;
  bool backward = false;  // an op's backward
  int32_t name = 0;       // the op, or the last part of a module's path
  int32_t phase = 0;      // the open phase, "" outside phases; a phase's own name
  int32_t module = 0;     // the path of open modules, "model.layers.3.self_attn", which
                          // includes a module itself; an op's backward has its forward's
  int32_t shapes = 0;     // of an op's inputs, "(4, 512, 768) (768)"; "" if not recorded
  int32_t parent = -1;    // the enclosing range; -1: none
  int64_t begin = 0, end = 0;
};

// A call of CUDA's runtime or driver that puts work on the GPU or waits for it.
struct CudaCall {
  int32_t name = 0;    // "cudaLaunchKernelExC"
  int32_t range = -1;  // the innermost range that was open
  int64_t begin = 0, end = 0;
  uint64_t correlation = 0;  // of the device event that it caused
};

enum class DeviceEventKind : uint8_t {
  kernel,
  copy,
  set,
  op,  // all work of an op, timed by CUDA events: the fallback without CUPTI
};

template <>
inline constexpr std::array kNamesOf<DeviceEventKind>{"kernel", "copy", "set", "gpu_op"};

struct DeviceEvent {
  DeviceEventKind kind = DeviceEventKind::kernel;
  int32_t name = 0;    // the kernel's, demangled; "copy host to device"; the op's
  int32_t range = -1;  // the innermost range that was open when it was launched; -1: unknown
  int32_t stream = 0;
  int64_t begin = 0, end = 0;
  int64_t bytes = 0;         // of copies and sets
  uint64_t correlation = 0;  // 0: no call
};

struct MemoryPoint {
  int64_t time = 0;
  int64_t allocated = 0, reserved = 0;  // bytes, from this time on
};

struct TimeSpan {
  int64_t begin = 0, end = 0;
};

enum class GpuTimes : uint8_t {
  none,    // nothing ran on a GPU
  cupti,   // every kernel and copy
  events,  // CUDA events around ops
};
template <>
inline constexpr std::array kNamesOf<GpuTimes>{"none", "cupti", "events"};

struct Profile {
  Names names;
  std::string device;  // "NVIDIA H200", or the CPU
  std::string target;  // "train", "forward", "softmax"
  std::string ranks;   // "rank 0 of 2 over NCCL 2.28.3"; empty: one rank
  std::string note;    // a warning to the reader: "CUPTI is missing (...): CUDA events ..."
  bool on_gpu = false;
  // Steps replayed a CUDA graph: `ranges` are those of its capture, before the first step, and the
  // device events of every step refer to them.
  bool captured = false;
  GpuTimes gpu_times = GpuTimes::none;
  std::vector<TimeSpan> steps;             // host times, each to the end of its device work
  std::vector<RangeEvent> ranges;          // by begin: a parent comes before its children
  std::vector<CudaCall> calls;             // by begin
  std::vector<DeviceEvent> device_events;  // by begin
  std::vector<MemoryPoint> memory;         // by time
  double unprofiled_step_ms = 0.0;         // median without the recorder; 0: not measured

  bool has_gpu_times() const { return on_gpu && gpu_times != GpuTimes::none; }
  // "linear", "linear backward".
  std::string name_of(const RangeEvent& range) const {
    return names[range.name] + (range.backward ? " backward" : "");
  }
};

}  // namespace quern
