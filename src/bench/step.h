// `quern bench step`: the cost of a forward, a forward with backward, and a whole training step.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "bench/phase_runner.h"
#include "bench/table.h"
#include "config/config.h"

namespace quern {

struct StepBenchOptions {
  std::vector<Phase> phases{Phase::fwd, Phase::fwdbwd, Phase::step};
  int64_t warmup = 5;  // unmeasured iterations of each phase; may be 0
  int64_t steps = 20;  // measured iterations
};

struct PhaseResult {
  Phase phase = Phase::fwd;
  std::string out_of_memory;             // the allocator's message; empty when it fitted
  bool captured = false;                 // total is the time of CUDA graph replays
  Summary total;                         // milliseconds an iteration
  Summary launched;                      // the same with every kernel launched by itself
  Summary forward, backward, optimizer;  // parts of launched; zero if the phase lacks them
  // Milliseconds of the first iterations, at most three, including the warm-up's; and the mean of
  // the other measured iterations, NaN when there are none.
  std::vector<double> first;
  double rest = 0.0;
  int64_t peak_bytes = 0;                                           // most memory in use
  int64_t forward_peak = 0, backward_peak = 0, optimizer_peak = 0;  // of the launched parts
  double tokens_per_second = 0.0;                                   // at the median
  double tflops = 0.0;  // model FLOPs of the phase over the median
};

struct StepBenchResult {
  Config config;
  std::string device;  // "cuda:0"
  int64_t parameters = 0;
  double flops_per_step = 0;  // forward and backward, as flops_per_token() counts
  std::vector<PhaseResult> phases;
  double seconds = 0.0;  // the whole measurement
};

// Times every phase on the current Context's device: random weights, four batches of random tokens
// in turn; launched kernel by kernel, and also as a graph if the configuration captures steps. Each
// phase has a model of its own, so that its peak includes only its needs: no gradients and moments
// for fwd. NVIDIA's profilers see the named ranges; the measured iterations lie in a range
// `measure`, and profilers with a capture range record only them. Throws UsageError when the
// vocabulary is not given.
StepBenchResult bench_step(const Config& config, const StepBenchOptions& options);

// A table of one configuration, for people: each phase with its parts.
std::string step_table(const StepBenchResult& result);

// One line of JSON with the keys of benchmarks/peers/torch_lm.py and more, without a newline.
// `peer` names the program: "quern-0.1.0". `keys` has the keys that differ from their defaults,
// by section. A phase that ran out of memory has the value "OOM".
std::string step_json(const StepBenchResult& result, const std::string& peer,
                      const Fields& more = {});

// Compares configurations: adds the result's rows to the table, one a phase. In tables for people,
// settings (size, ctx, batch, precision, attention, kernels, graph, moments) outside `varying` have
// no column. Rows of JSON are step_json's, one a configuration.
std::string step_rows(Table& table, const StepBenchResult& result,
                      const std::set<std::string>& varying);

}  // namespace quern
