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

// Makes a part of a training step, on the current Context's device. Precision, variants and the
// shapes of the first three follow the configuration:
// - attention: one layer's, forward and backward, (batch, ctx, heads, head_dim)
// - matmul: (batch x ctx, d_model) by (d_model, d_ff)
// - mlp: Linear and GELU, as many as layers, d_model wide, on batch x ctx rows; forward, backward
// - a kernel: shapes of `bench kernels`, the precision's dtype if available; the forward before
// a backward is recorded on the tape but not timed
// Throws UsageError for an unknown part, and for "train", which is no part.
KernelWork make_part(const std::string& target, const Config& config);

struct ProfileOptions {
  std::string target = "train";  // one of profile_targets()
  Phase phase = Phase::step;     // in training: the last part of a step
  int64_t warmup = 3;            // steps before those measured; at least 2 with graph
  int64_t steps = 5;             // recorded steps; as many run before them without the recorder
  bool graph = false;            // replay training steps as a CUDA graph
  std::string cupti = "auto";    // see Recorder
};

// Throws UsageError on an unknown target, a phase without training, several ranks of anything but
// whole training steps, and a missing vocabulary. Needs no Context.
void check_options(const Config& config, const ProfileOptions& options);
// Throws UsageError when `graph` is set for work that is never captured.
void check_graph(const Config& config, const ProfileOptions& options);

// Uses random weights and tokens on the current Context's device: the warm-up, the steps without a
// recorder, then those with it. Training runs kernel by kernel unless `graph` is set, and the note
// says so. Throws UsageError like both checks, and OutOfMemory.
// group: all ranks, whose collectives are ops of the profile; each makes its own. null: one rank.
Profile profile_steps(const Config& config, const ProfileOptions& options,
                      Communicator* group = nullptr);

// Traces the memory of the same work, from before its construction through two launched steps. A
// separate run, so that recording allocations does not affect the times. For one rank.
MemoryTrace trace_memory(const Config& config, const ProfileOptions& options);

}  // namespace quern
