// The memory of a forward or a training step by a dry run: the real model and the real step run on
// an allocator without memory (Context's second constructor), for the CPU or for a GPU that need
// not be present. The peak is the allocator's.
#pragma once

#include <cstdint>

#include "config/config.h"
#include "profile/memory/memory_trace.h"
#include "tensor/context.h"

namespace quern {

// forward: the loss without a tape, a model without gradients and optimizer. step: forward,
// backward, clipping and the optimizer.
enum class MemoryPass { forward, step };

// The device of a prediction.
struct MemoryTarget {
  Device device;
  kernels::cuda::DeviceTraits traits;  // of a GPU
};

MemoryTarget hopper_target();   // an H100 or H200
MemoryTarget current_target();  // the current Context's device

// Bytes in use at the moment of the peak.
struct PeakEstimate {
  MemoryByCategory by_category{};
  int64_t on_host = 0;  // in the host's memory beside a GPU: Offload

  int64_t of(MemoryCategory category) const { return by_category[static_cast<size_t>(category)]; }
  int64_t state() const;  // parameters, gradients and optimizer
  int64_t total() const;
};

// The peak of a pass over micro-batches of config.train.batch sequences of config.model.context
// tokens, launched kernel by kernel, as the allocator counts it. Exact for a GPU with the target's
// traits. Throws when batch or context is below 1.
PeakEstimate predict_peak(const Config& config, MemoryPass pass, const MemoryTarget& target);

// The peak of the current Context's GPU in the host's memory, since reset_peak of that allocator.
int64_t offloaded_bytes();

// The memory of the pass, run twice on the current Context with random weights and tokens: the
// second run starts like all later ones. The recording begins before the model is built.
MemoryTrace trace_memory(const Config& config, MemoryPass pass);

// Calls f on a dry Context of `target` with the OpOptions of `compute`.
template <class F>
auto run_dry(const MemoryTarget& target, const ComputeSection& compute, F&& f) {
  Context context(target.device, target.traits);
  context.options = compute;
  const ContextScope scope(context);
  return f();
}

}  // namespace quern
