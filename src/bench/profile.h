// `quern profile`: runs steps of training, or of a part of it, with a Recorder attached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/kernel_cases.h"
#include "bench/phase_runner.h"
#include "config/config.h"
#include "profile/memory/memory_trace.h"
#include "profile/time/profile.h"

namespace quern {

// "train", "attention", "matmul", "mlp", then the kernels of `bench kernels`: "softmax", "gelu",
// ...
std::vector<std::string> profile_targets();

// A part of a training step, on the current Context's device. Precision and variants are the
// configuration's, and so are the shapes of the first three:
// - attention: one layer's, forward and backward, (batch, ctx, heads, head_dim)
// - matmul: (batch x ctx, d_model) by (d_model, d_ff)
// - mlp: Linear and GELU, as many as layers, d_model wide, on batch x ctx rows; forward, backward
// - a kernel: in the shape of `bench kernels`, in the precision's dtype where there is a choice;
//   before a backward its forward is recorded, and that is not timed
// Throws UsageError for an unknown one, and for "train", which is no part.
KernelWork make_part(const std::string& target, const Config& config);

struct ProfileOptions {
  std::string target = "train";  // one of profile_targets()
  Phase phase = Phase::step;     // of training: how far a step goes
  int64_t warmup = 3;            // steps before those measured; 2 at least with graph
  int64_t steps = 5;             // recorded ones, and as many before them without the recorder
  bool graph = false;            // replay training steps as a CUDA graph
  std::string cupti = "auto";    // see RecorderOptions
};

// Throws UsageError on an unknown target, counts below 1 (warmup: 0), a phase of what is not
// training, a graph of what is not captured, and a vocabulary that is not given.
void check_options(const Config& config, const ProfileOptions& options);

// Random weights and random tokens, on the current Context's device: the warm-up, the steps without
// a recorder, then those with it. Training runs kernel by kernel unless `graph` is set, and the
// note says so. Throws UsageError as check_options does, and OutOfMemory.
Profile profile_steps(const Config& config, const ProfileOptions& options);

// The memory of the same work from before its making through two launched steps: a run of its own,
// so that recording every allocation costs the times nothing.
MemoryTrace trace_memory(const Config& config, const ProfileOptions& options);

}  // namespace quern
