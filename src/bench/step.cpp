#include "bench/step.h"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "autograd/tape.h"
#include "bench/nvtx.h"
#include "optim/adamw.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"
#include "train/config_parse.h"
#include "train/setup.h"
#include "train/training_step.h"

namespace quern {

namespace {

constexpr size_t kBatches = 4;
constexpr int64_t kCaptureWarmup = 2;  // a step runs once before it is captured
constexpr std::array kPhases{Phase::fwd, Phase::fwdbwd, Phase::step};

struct Batch {
  Tensor tokens, targets;  // (B, T) i32
};

std::array<Batch, kBatches> random_batches(const Config& config) {
  const Shape shape{config.train.batch, config.model.context};
  const auto V = static_cast<int32_t>(config.model.vocab_size);
  std::array<Batch, kBatches> batches;
  for (Batch& batch : batches) batch = {random_integers(shape, V), random_integers(shape, V)};
  return batches;
}

AdamWOptions adamw_options(const Config& config) {
  const OptimizerSection& o = config.optimizer;
  return {o.beta1, o.beta2, o.eps, o.weight_decay, o.clip, config.compute.kernels};
}

// The parts of an iteration, each of which ends in a mark.
size_t part_count(Phase phase) {
  return phase == Phase::fwd ? 1 : phase == Phase::fwdbwd ? 2 : 3;
}

// A model with random weights, and one phase of training it.
class PhaseRunner {
 public:
  PhaseRunner(const Config& config, Phase phase)
      : phase_(phase),
        instance_(config.model, config.compute, config.model.init, phase != Phase::fwd,
                  static_cast<uint64_t>(config.train.seed)) {
    if (phase != Phase::step) return;
    optimizer_.emplace(instance_.arena, adamw_options(config));
    optimizer_->set_learning_rate(config.optimizer.lr);
  }

  // Kernel by kernel, with a mark after each part.
  void launch(const Batch& batch, Timeline* timeline) {
    if (phase_ == Phase::fwd) {
      const NoGrad no_grad;
      forward(batch, timeline);
      return;
    }
    instance_.arena.zero_grad();
    const Variable loss = forward(batch, timeline);
    {
      const RangeScope range("backward");
      backward(loss);
    }
    if (timeline) timeline->mark();
    if (!optimizer_) return;
    optimizer_->step(loss.value());
    if (timeline) timeline->mark();
  }

  // As one graph, captured at the first call; a whole step as the trainer runs it.
  void replay(const Batch& batch, Timeline* timeline) {
    if (phase_ == Phase::step) {
      if (!step_) step_.emplace(instance_, *optimizer_, true);
      step_->run(batch.tokens, batch.targets, {});
    } else {
      if (!graph_) record(batch);
      copy(input_.tokens, batch.tokens);
      copy(input_.targets, batch.targets);
      graph_->launch();
    }
    if (timeline) timeline->mark();
  }

 private:
  Variable forward(const Batch& batch, Timeline* timeline) {
    const RangeScope range("forward");
    Variable loss = instance_.model.loss(batch.tokens, batch.targets);
    if (timeline) timeline->mark();
    return loss;
  }

  void record(const Batch& batch) {
    const Context& context = Context::current();
    Allocator& allocator = *context.allocator(context.device());
    input_ = {empty_like(batch.tokens, "batch"), empty_like(batch.targets, "batch")};
    pool_ = allocator.make_pool();
    const PoolScope scope(allocator, pool_);
    graph_ = std::make_unique<Graph>([&] { launch(input_, nullptr); });
  }

  Phase phase_;
  ModelInstance instance_;
  std::optional<AdamW> optimizer_;
  std::optional<TrainingStep> step_;
  Batch input_;
  std::shared_ptr<MemoryPool> pool_;
  std::unique_ptr<Graph> graph_;
};

// Every `parts`-th interval from the first-th on.
Summary summarize_part(const std::vector<double>& intervals, size_t parts, size_t first) {
  std::vector<double> part;
  for (size_t i = first; i < intervals.size(); i += parts) part.push_back(intervals[i]);
  return summarize(part);
}

void summarize_launched(PhaseResult& result, const std::vector<double>& intervals) {
  const size_t parts = part_count(result.phase);
  std::vector<double> totals(intervals.size() / parts, 0.0);
  for (size_t i = 0; i < intervals.size(); ++i) totals[i / parts] += intervals[i];
  result.launched = summarize(totals);
  result.forward = summarize_part(intervals, parts, 0);
  if (parts > 1) result.backward = summarize_part(intervals, parts, 1);
  if (parts > 2) result.optimizer = summarize_part(intervals, parts, 2);
}

// run(batch, timeline), which marks the timeline `parts` times: the intervals between the marks.
template <class Run>
std::vector<double> time_iterations(const StepBenchOptions& options,
                                    const std::array<Batch, kBatches>& batches, int64_t warmup,
                                    size_t parts, const char* range, Run run) {
  const Context& context = Context::current();
  for (int64_t i = 0; i < warmup; ++i) run(batches[static_cast<size_t>(i) % kBatches], nullptr);
  context.synchronize();
  const auto steps = static_cast<size_t>(options.steps);
  Timeline timeline(1 + steps * parts);
  const ProfiledRange profiled(range);
  timeline.mark();
  for (size_t i = 0; i < steps; ++i) run(batches[i % kBatches], &timeline);
  context.synchronize();
  return timeline.intervals();
}

void measure(PhaseResult& result, const Config& config, const StepBenchOptions& options) {
  const Context& context = Context::current();
  Allocator& allocator = *context.allocator(context.device());
  PhaseRunner runner(config, result.phase);
  const std::array<Batch, kBatches> batches = random_batches(config);
  allocator.reset_peak();
  summarize_launched(
      result, time_iterations(
                  options, batches, options.warmup, part_count(result.phase), "launched",
                  [&](const Batch& batch, Timeline* timeline) { runner.launch(batch, timeline); }));
  result.total = result.launched;
  result.captured = captures_steps(config.compute);
  if (result.captured) {
    allocator.release_cached();  // the graph takes memory of its own
    const int64_t warmup = std::max(options.warmup, kCaptureWarmup);
    result.total = summarize(time_iterations(
        options, batches, warmup, 1, "measure",
        [&](const Batch& batch, Timeline* timeline) { runner.replay(batch, timeline); }));
  }
  result.peak_bytes = allocator.stats().peak_allocated;
}

PhaseResult bench_phase(Phase phase, const Config& config, const StepBenchOptions& options) {
  const Context& context = Context::current();
  context.allocator(context.device())->release_cached();
  PhaseResult result;
  result.phase = phase;
  try {
    measure(result, config, options);
  } catch (const OutOfMemory& error) {
    result.out_of_memory = error.what();
    return result;
  }
  const auto tokens = static_cast<double>(config.train.batch * config.model.context);
  const double flops = tokens * flops_per_token(config.model, config.model.context);
  const double seconds = result.total.median / 1e3;
  result.tokens_per_second = tokens / seconds;
  result.tflops = (phase == Phase::fwd ? flops / 3 : flops) / seconds / 1e12;
  return result;
}

void check_options(const Config& config, const StepBenchOptions& options) {
  if (options.steps < 1)
    throw UsageError(cat("--steps is ", options.steps, ", expected at least 1"));
  if (options.warmup < 0) {
    throw UsageError(cat("--warmup is ", options.warmup, ", expected 0 or more"));
  }
  if (config.model.vocab_size < 1) {
    throw UsageError("--vocab is 0, expected at least 1: the benchmark has no data to tell it");
  }
}

}  // namespace

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::fwd: return "fwd";
    case Phase::fwdbwd: return "fwdbwd";
    case Phase::step: return "step";
  }
  fail("bench: unknown phase");
}

std::vector<Phase> parse_phases(const std::string& text) {
  std::vector<Phase> phases;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto found = std::find_if(kPhases.begin(), kPhases.end(),
                                    [&](Phase phase) { return word == name_of(phase); });
    if (found == kPhases.end()) {
      throw UsageError(cat("--phases has '", word, "', expected fwd, fwdbwd or step",
                           did_you_mean(word, {"fwd", "fwdbwd", "step"})));
    }
    phases.push_back(*found);
  }
  if (phases.empty()) throw UsageError("--phases is empty, expected some of fwd,fwdbwd,step");
  return phases;
}

StepBenchResult bench_step(const Config& config, const StepBenchOptions& options) {
  check_options(config, options);
  const auto start = std::chrono::steady_clock::now();
  const NvtxRanges ranges;
  StepBenchResult result;
  result.config = config;
  result.device = cat(Context::current().device());
  result.parameters = parameter_count(config.model);
  result.flops_per_step = flops_per_token(config.model, config.model.context) *
                          static_cast<double>(config.train.batch * config.model.context);
  for (const Phase phase : options.phases) {
    result.phases.push_back(bench_phase(phase, config, options));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace quern
