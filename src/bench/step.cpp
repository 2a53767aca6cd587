#include "bench/step.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <optional>
#include <sstream>

#include "autograd/tape.h"
#include "bench/profiled_range.h"
#include "bench/random_batch.h"
#include "config/config_parse.h"
#include "model/model_cost.h"
#include "run/make_optimizer.h"
#include "run/model_instance.h"
#include "tensor/cuda_runtime.h"
#include "train/choose_recompute.h"
#include "train/training_step.h"

namespace quern {

namespace {

constexpr size_t kBatches = 4;
constexpr size_t kFirst = 3;           // iterations that show the effect of warming up
constexpr int64_t kCaptureWarmup = 2;  // a step runs once before it is captured
constexpr std::array kPhases{Phase::fwd, Phase::fwdbwd, Phase::step};

std::array<RandomBatch, kBatches> random_batches(const Config& config) {
  std::array<RandomBatch, kBatches> batches;
  for (RandomBatch& batch : batches) batch = random_batch(config, config.train.batch);
  return batches;
}

// The parts of an iteration, each of which ends in a mark.
size_t part_count(Phase phase) {
  return phase == Phase::fwd ? 1 : phase == Phase::fwdbwd ? 2 : 3;
}

Allocator& current_allocator() {
  const Context& context = Context::current();
  return *context.allocator(context.device());
}

// Time and memory of launched iterations, part by part.
class PartMeter {
 public:
  PartMeter(int64_t iterations, Phase phase)
      : parts_(part_count(phase)), timeline_(1 + static_cast<size_t>(iterations) * parts_) {
    current_allocator().reset_peak();
    timeline_.mark();
  }

  void end_part() {
    timeline_.mark();
    int64_t& peak = peaks_[at_];
    peak = std::max(peak, current_allocator().stats().peak_allocated);
    current_allocator().reset_peak();
    at_ = (at_ + 1) % parts_;
  }

  std::vector<double> part(size_t index) const {
    const std::vector<double> all = timeline_.intervals();
    std::vector<double> ms;
    for (size_t i = index; i < all.size(); i += parts_) ms.push_back(all[i]);
    return ms;
  }

  std::vector<double> totals() const {
    const std::vector<double> all = timeline_.intervals();
    std::vector<double> ms(all.size() / parts_, 0.0);
    for (size_t i = 0; i < all.size(); ++i) ms[i / parts_] += all[i];
    return ms;
  }

  int64_t peak(size_t index) const { return peaks_[index]; }

 private:
  size_t parts_, at_ = 0;
  Timeline timeline_;
  std::array<int64_t, 3> peaks_{};
};

// A model with random weights, and one phase of training it.
class PhaseRunner {
 public:
  PhaseRunner(const Config& config, Phase phase)
      : phase_(phase),
        instance_(config.model, decided_options(config), config.model.init, phase != Phase::fwd,
                  static_cast<uint64_t>(config.train.seed)) {
    if (phase != Phase::step) return;
    optimizer_ = make_optimizer(instance_.arena, config);
    optimizer_->set_learning_rate(config.optimizer.lr);
  }

  // Kernel by kernel; the meter, if there is one, is told of each part's end.
  void launch(const RandomBatch& batch, PartMeter* meter) {
    if (phase_ == Phase::fwd) {
      const NoGrad no_grad;
      forward(batch, meter);
      return;
    }
    instance_.arena.zero_grad();
    const Variable loss = forward(batch, meter);
    {
      const RangeScope range(RangeKind::phase, "backward");
      backward(loss);
    }
    if (meter) meter->end_part();
    if (!optimizer_) return;
    optimizer_->step(loss.value());
    if (meter) meter->end_part();
  }

  // As one graph, captured at the first call; a whole step as the trainer runs it.
  void replay(const RandomBatch& batch) {
    if (phase_ == Phase::step) {
      if (!step_) step_.emplace(instance_, *optimizer_, true);
      step_->run(batch.tokens, batch.targets, {});
    } else {
      if (!graph_) record(batch);
      copy(input_.tokens, batch.tokens);
      copy(input_.targets, batch.targets);
      graph_->launch();
    }
  }

 private:
  Variable forward(const RandomBatch& batch, PartMeter* meter) {
    const RangeScope range(RangeKind::phase, "forward");
    Variable loss = instance_.model.loss(batch.tokens, batch.targets);
    if (meter) meter->end_part();
    return loss;
  }

  void record(const RandomBatch& batch) {
    const Context& context = Context::current();
    Allocator& allocator = *context.allocator(context.device());
    input_ = {empty_like(batch.tokens, "batch"), empty_like(batch.targets, "batch")};
    pool_ = allocator.make_pool();
    const PoolScope scope(allocator, pool_);
    graph_ = std::make_unique<Graph>([&] { launch(input_, nullptr); });
  }

  Phase phase_;
  ModelInstance instance_;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<TrainingStep> step_;
  RandomBatch input_;
  std::shared_ptr<MemoryPool> pool_;
  std::unique_ptr<Graph> graph_;
};

using Batches = std::array<RandomBatch, kBatches>;

// The first iterations of all, and the mean of the measured ones after them.
void note_first(PhaseResult& result, const std::vector<double>& warmup,
                const std::vector<double>& measured) {
  std::vector<double> all = warmup;
  all.insert(all.end(), measured.begin(), measured.end());
  const size_t first = std::min(kFirst, all.size());
  result.first.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
  const size_t skipped = first > warmup.size() ? first - warmup.size() : 0;
  result.rest = std::accumulate(measured.begin() + static_cast<std::ptrdiff_t>(skipped),
                                measured.end(), 0.0) /
                static_cast<double>(measured.size() - skipped);
}

void measure_launched(PhaseResult& result, PhaseRunner& runner, const Batches& batches,
                      const StepBenchOptions& options) {
  const auto iterate = [&](int64_t count, PartMeter& meter) {
    for (int64_t i = 0; i < count; ++i) {
      runner.launch(batches[static_cast<size_t>(i) % kBatches], &meter);
    }
    Context::current().synchronize();
  };
  PartMeter warmup(options.warmup, result.phase);
  iterate(options.warmup, warmup);
  const ProfiledRange profiled("launched");
  PartMeter meter(options.steps, result.phase);
  iterate(options.steps, meter);

  const size_t parts = part_count(result.phase);
  result.launched = summarize(meter.totals());
  note_first(result, warmup.totals(), meter.totals());
  const std::array summaries{&result.forward, &result.backward, &result.optimizer};
  const std::array peaks{&result.forward_peak, &result.backward_peak, &result.optimizer_peak};
  for (size_t i = 0; i < parts; ++i) {
    *summaries[i] = summarize(meter.part(i));
    *peaks[i] = std::max(meter.peak(i), warmup.peak(i));
    result.peak_bytes = std::max(result.peak_bytes, *peaks[i]);
  }
}

Summary measure_replayed(PhaseRunner& runner, const Batches& batches,
                         const StepBenchOptions& options) {
  const int64_t warmup = std::max(options.warmup, kCaptureWarmup);
  for (int64_t i = 0; i < warmup; ++i) runner.replay(batches[static_cast<size_t>(i) % kBatches]);
  Context::current().synchronize();
  const auto steps = static_cast<size_t>(options.steps);
  Timeline timeline(1 + steps);
  const ProfiledRange profiled("measure");
  timeline.mark();
  for (size_t i = 0; i < steps; ++i) {
    runner.replay(batches[i % kBatches]);
    timeline.mark();
  }
  Context::current().synchronize();
  return summarize(timeline.intervals());
}

void measure(PhaseResult& result, const Config& config, const StepBenchOptions& options) {
  PhaseRunner runner(config, result.phase);
  const Batches batches = random_batches(config);
  measure_launched(result, runner, batches, options);
  result.total = result.launched;
  result.captured = captures_steps(config.compute);
  if (!result.captured) return;
  Allocator& allocator = current_allocator();
  allocator.release_cached();  // the graph takes memory of its own
  allocator.reset_peak();
  result.total = measure_replayed(runner, batches, options);
  result.peak_bytes = std::max(result.peak_bytes, allocator.stats().peak_allocated);
}

PhaseResult bench_phase(Phase phase, const Config& config, const StepBenchOptions& options) {
  current_allocator().release_cached();
  PhaseResult result;
  result.phase = phase;
  try {
    measure(result, config, options);
  } catch (const OutOfMemory& error) {
    result = {};  // what was measured before memory ran out is not the phase's
    result.phase = phase;
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
    if (std::find(phases.begin(), phases.end(), *found) != phases.end()) {
      throw UsageError(cat("--phases has '", word, "' twice"));
    }
    phases.push_back(*found);
  }
  if (phases.empty()) throw UsageError("--phases is empty, expected some of fwd,fwdbwd,step");
  return phases;
}

StepBenchResult bench_step(const Config& config, const StepBenchOptions& options) {
  check_options(config, options);
  const auto start = std::chrono::steady_clock::now();
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
