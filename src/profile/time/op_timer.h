// Where CUPTI is missing: how long the GPU takes for each outermost op, by CUDA events on the
// stream.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "profile/time/profile.h"
#include "tensor/cuda_runtime.h"

namespace quern {

// The device's work of one phase of one step, as far as events timed it.
struct PhaseWork {
  DeviceEvent phase;             // the whole
  std::vector<DeviceEvent> ops;  // in its order; of an untimed phase without times
};

// The ops of `untimed`, each where it was in `timed`, the same phase of another step, stretched to
// the phase's own length. The phase as one event when the two have not the same ops.
std::vector<DeviceEvent> place_ops(const PhaseWork& untimed, const PhaseWork& timed);

// An event costs the GPU some 1.7 us, which for all ops of a small model would be more than 5 % of
// the step. So two ops share one where the stream has not run dry between them (what was put on the
// stream between two ops counts to the second), and every other phase's ops are timed, the rest in
// the next step; they are then placed as they were there.
class OpTimer {
 public:
  OpTimer();

  // The stream is idle. Outside steps nothing is timed.
  void begin_step(int64_t now);
  // All of the step is on the stream. Without phases and ops it is one event of the name `step`.
  void close_step(int32_t step);
  // The stream has become idle.
  void end_step();

  // A phase, or an outermost op, of that range and name.
  void begin(RangeKind kind, int32_t range, int32_t name);
  void end(RangeKind kind);

  // All steps' events, by begin. A phase without ops is one.
  std::vector<DeviceEvent> finish();

 private:
  // From one recorded event to another, by number.
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
  size_t mark();  // the last event if nothing has passed it yet
  DeviceEvent timed(const Span& span) const;
  void keep(const Phase& phase, size_t ordinal);

  cuda::Stream stream_;
  std::vector<cuda::Event> events_;
  size_t recorded_ = 0;  // of them in this step; the first is the step's begin
  size_t step_ = 0;
  int64_t step_begin_ = 0;
  bool in_step_ = false;
  int open_phases_ = 0;
  std::vector<Phase> phases_;                 // of this step
  std::vector<Span> loose_;                   // its ops outside phases
  std::vector<DeviceEvent> done_;             // of all steps
  std::map<size_t, PhaseWork> patterns_;      // timed phases, by their place in a step
  std::multimap<size_t, PhaseWork> untimed_;  // phases whose ops are to be placed
};

}  // namespace quern
