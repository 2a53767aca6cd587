// The fallback without CUPTI: times each outermost op by CUDA events on the stream.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "profile/time/profile.h"
#include "tensor/cuda_runtime.h"

namespace quern {

// The timed device work of one phase of one step.
struct PhaseWork {
  DeviceEvent phase;             // the whole phase
  std::vector<DeviceEvent> ops;  // in launch order; in an untimed phase without times
};

// Places the ops of `untimed` as in `timed`, the same phase of another step, stretched to the
// phase's own length. Returns the phase as one event when their ops differ.
std::vector<DeviceEvent> place_ops(const PhaseWork& untimed, const PhaseWork& timed);

// An event costs the GPU some 1.7 us: for all ops of a small model more than 5 % of the step. So
// two ops share an event while the stream is busy; work between them counts to the second. A step
// times the ops of every other phase, the next step those of the remaining phases. Untimed ops are
// placed as they were in the timed step.
class OpTimer {
 public:
  OpTimer();

  // Call when the stream is idle. Outside steps nothing is timed.
  void begin_step(int64_t now);
  // All of the step is on the stream. Without phases and ops it is one event of the name `step`.
  void close_step(int32_t step);
  // Call when the stream has become idle.
  void end_step();

  // A phase, or an outermost op, with its range and name.
  void begin(RangeKind kind, int32_t range, int32_t name);
  void end(RangeKind kind);

  // The events of all steps, by begin. A phase without ops is one event.
  std::vector<DeviceEvent> finish();

 private:
  // From one recorded event to another, by index.
  struct Span {
    DeviceEvent event;
    size_t begin = 0, end = 0;
  };
  struct Phase {
    Span span;
    std::vector<Span> ops;
    bool timed = false;
  };

  size_t record();
  size_t mark();  // the last event if the stream has not passed it, else a new one
  DeviceEvent timed(const Span& span) const;
  void keep(const Phase& phase, size_t ordinal);

  cuda::Stream stream_;
  std::vector<cuda::Event> events_;
  size_t recorded_ = 0;  // number used in this step; the first is the step's begin
  size_t step_ = 0;
  int64_t step_begin_ = 0;
  bool in_step_ = false;
  int open_phases_ = 0;
  std::vector<Phase> phases_;                 // of this step
  std::vector<Span> loose_;                   // its ops outside phases
  std::vector<DeviceEvent> done_;             // of all steps
  std::map<size_t, PhaseWork> patterns_;      // timed phases, by index in a step
  std::multimap<size_t, PhaseWork> untimed_;  // phases whose ops still need times
};

}  // namespace quern
