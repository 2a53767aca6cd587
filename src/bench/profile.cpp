#include "bench/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "autograd/ops/attention.h"
#include "autograd/ops/matmul.h"
#include "autograd/tape.h"
#include "bench/kernels.h"
#include "bench/mlp.h"
#include "bench/precision_scope.h"
#include "config/config_parse.h"
#include "dist/ranged_group.h"
#include "profile/memory/memory_recorder.h"
#include "profile/time/recorder.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr int64_t kTracedSteps = 2;  // of the memory: later steps allocate like the second

KernelWork attention_part(const Config& config) {
  const ModelSection& m = config.model;
  const DType dtype = operand_type(config.compute.precision);
  const Shape heads{config.train.batch, m.context, m.heads, m.head_size()};
  const Shape kv_heads{config.train.batch, m.context, m.kv_head_count(), m.head_size()};
  const Variable q = Variable::leaf(normal(heads, 0, 1, dtype));
  const Variable k = Variable::leaf(normal(kv_heads, 0, 1, dtype));
  const Variable v = Variable::leaf(normal(kv_heads, 0, 1, dtype));
  const Tensor d_o = normal(heads, 0, 1, dtype);
  const bool flash = config.compute.attention == AttentionKind::flash;
  return {[=] {
    Variable o;
    {
      const RangeScope range(RangeKind::phase, "forward");
      o = flash ? flash_attention(q, k, v, {}) : naive_attention(q, k, v, {});
    }
    const RangeScope range(RangeKind::phase, "backward");
    backward(o, d_o);
    for (const Variable& input : {q, k, v}) input.leaf_store()->zero();
  }};
}

KernelWork matmul_part(const Config& config) {
  const ModelSection& m = config.model;
  const DType dtype = operand_type(config.compute.precision);
  const Tensor a = normal({config.train.batch * m.context, m.d_model}, 0.0, 1.0, dtype);
  const Tensor b = normal({m.d_model, m.d_ff}, 0.0, 1.0, dtype);
  return {[=] {
    const RangeScope range(RangeKind::phase, "forward");
    const NoGrad no_grad;
    matmul(a, b);
  }};
}

KernelWork mlp_part(const Config& config) {
  const ModelSection& m = config.model;
  const MlpShape shape{m.layers, m.d_model, config.train.batch * m.context, 1};
  const auto runner = std::make_shared<MlpRunner>(shape, config.compute.precision, false);
  return {[=] { runner->run([] {}); }};
}

// The first case in the precision's dtype, else the first; fused or naive by the configuration.
KernelWork kernel_part(const KernelFamily& family, const Config& config) {
  const bool on_gpu = Context::current().device().is_cuda();
  const std::vector<KernelCase> cases = family.cases(on_gpu ? 0 : kCpuRows);
  const DType dtype = operand_type(config.compute.precision);
  auto found = std::find_if(cases.begin(), cases.end(),
                            [&](const KernelCase& one) { return one.dtype == dtype; });
  if (found == cases.end()) found = cases.begin();
  const std::string name = config.compute.kernels == KernelKind::fused ? "fused" : "naive";
  const auto variant = std::find_if(found->variants.begin(), found->variants.end(),
                                    [&](const KernelVariant& one) { return one.name == name; });
  QUERN_CHECK(variant != found->variants.end(), "profile: ", family.name, " has no variant ", name);
  KernelWork work = variant->make();
  work.run = [run = work.run] {
    const RangeScope range(RangeKind::phase, "run");
    run();
  };
  return work;
}

// A part, or training of a model with random weights: as the trainer does, or only up to a phase.
struct Work {
  KernelWork run;
  std::shared_ptr<PhaseRunner> training;  // null: a part
};

Work make_work(const Config& config, const ProfileOptions& options, Communicator* group) {
  if (options.target != "train") return {make_part(options.target, config), nullptr};
  const auto runner = std::make_shared<PhaseRunner>(config, options.phase, group);
  if (options.phase != Phase::step) return {{[=] { runner->launch([] {}); }}, runner};
  return {{[runner, capture = options.graph] { runner->train(capture); }}, runner};
}

std::string target_text(const ProfileOptions& options) {
  if (options.target != "train") return options.target;
  switch (options.phase) {
    case Phase::fwd: return "forward";
    case Phase::fwdbwd: return "forward and backward";
    case Phase::step: return "train";
  }
  fail("profile: unknown phase");
}

// Median milliseconds. Each step waits for the device, as in the recorder.
double time_steps(const KernelWork& work, int64_t steps) {
  const Context& context = Context::current();
  std::vector<double> ms;
  for (int64_t i = 0; i < steps; ++i) {
    work.prepare();
    context.synchronize();
    const int64_t begin = profile_clock();
    work.run();
    context.synchronize();
    ms.push_back(static_cast<double>(profile_clock() - begin) / 1e6);
  }
  return summarize(ms).median;
}

// Runs `unrecorded` steps before the recorded ones: the recorder sees them outside of steps.
void record(Profile& profile, const KernelWork& work, const ProfileOptions& options,
            int64_t unrecorded, int64_t steps) {
  Recorder recorder(profile, options.cupti);
  for (int64_t i = 0; i < unrecorded; ++i) work.run();
  for (int64_t i = 0; i < steps; ++i) {
    work.prepare();
    recorder.begin_step();
    work.run();
    recorder.end_step();
  }
  recorder.finish();
}

void add_note(Profile& profile, const std::string& note) {
  profile.note = note + (profile.note.empty() ? "" : "; ") + profile.note;
}

void note_untimed_collectives(Profile& profile) {
  if (profile.ranks.empty() || profile.gpu_times != GpuTimes::events) return;
  add_note(profile, "without CUPTI collectives have no times: they are beside the timed stream");
}

}  // namespace

std::vector<std::string> profile_targets() {
  std::vector<std::string> targets{"train", "attention", "matmul", "mlp"};
  const std::vector<std::string> kernels = kernel_names();
  targets.insert(targets.end(), kernels.begin(), kernels.end());
  return targets;
}

KernelWork make_part(const std::string& target, const Config& config) {
  if (target == "attention") return attention_part(config);
  if (target == "matmul") return matmul_part(config);
  if (target == "mlp") return mlp_part(config);
  for (const KernelFamily& family : kernel_families()) {
    if (target == family.name) return kernel_part(family, config);
  }
  throw UsageError(cat("profile: '", target, "' is no part of `quern bench`"));
}

void check_options(const Config& config, const ProfileOptions& options) {
  const std::vector<std::string> targets = profile_targets();
  if (std::find(targets.begin(), targets.end(), options.target) == targets.end()) {
    throw UsageError(fmt::format("--target is '{}', expected one of {}{}", options.target,
                                 fmt::join(targets, ", "), did_you_mean(options.target, targets)));
  }
  const bool training = options.target == "train";
  if (!training && options.phase != Phase::step) {
    throw UsageError(cat("--phases is ", name_of(options.phase), ", which needs --target train, ",
                         "found ", options.target));
  }
  if (training) check_vocabulary(config);
  if (config.parallel.ranks > 1 && (!training || options.phase != Phase::step)) {
    throw UsageError(cat("profile: found ", config.parallel.ranks,
                         " ranks, which need --target train and ",
                         "--phases step: nothing else communicates"));
  }
}

void check_graph(const Config& config, const ProfileOptions& options) {
  if (!options.graph) return;
  if (options.target != "train" || options.phase != Phase::step) {
    throw UsageError("--graph is for whole steps of --target train: nothing else is captured");
  }
  if (!Context::current().device().is_cuda()) {
    throw UsageError("--graph needs a GPU: the CPU has no graphs");
  }
  if (config.compute.kernels != KernelKind::fused) {
    throw UsageError("--graph needs --kernels fused: the naive optimizer reads back its norm");
  }
}

Profile profile_steps(const Config& config, const ProfileOptions& options, Communicator* ranks) {
  check_options(config, options);
  check_graph(config, options);
  std::optional<RangedGroup> ranged;
  Communicator* const group = ranks ? &ranged.emplace(*ranks) : nullptr;
  Profile profile;
  profile.target = target_text(options);
  if (ranks) {
    profile.ranks = cat("rank ", ranks->rank(), " of ", ranks->size(), " over ", ranks->engine());
  }
  profile.captured = options.graph;
  const auto [work, training] = make_work(config, options, group);
  const int64_t warmup = options.graph ? std::max(options.warmup, kCaptureWarmup) : options.warmup;
  for (int64_t i = 0; i < warmup; ++i) {
    work.prepare();
    work.run();
  }
  profile.unprofiled_step_ms = time_steps(work, options.steps);
  if (options.graph) {
    training->forget_capture();  // its graph was captured without a recorder
    work.run();
    // The second step captures the graph under the recorder, which thus learns the ranges of its
    // kernels. Later steps replay it.
    record(profile, work, options, 2, options.steps);
    if (profile.gpu_times == GpuTimes::events) {
      add_note(profile, "without CUPTI a replayed graph is timed as one op");
    }
    note_untimed_collectives(profile);
    return profile;
  }
  Profile first;  // discarded: CUPTI sets itself up in this step
  record(first, work, options, 0, 1);
  record(profile, work, options, 0, options.steps);
  note_untimed_collectives(profile);
  if (options.target == "train" && options.phase == Phase::step && profile.on_gpu &&
      config.compute.kernels == KernelKind::fused) {
    add_note(profile,
             "steps ran kernel by kernel; training replays them as a CUDA graph, which "
             "--graph profiles");
  }
  return profile;
}

MemoryTrace trace_memory(const Config& config, const ProfileOptions& options) {
  check_options(config, options);
  ProfileOptions launched = options;
  launched.graph = false;
  const Context& context = Context::current();
  context.allocator()->release_cached();
  const MemoryRecorder recorder;
  const KernelWork work = make_work(config, launched, nullptr).run;
  for (int64_t i = 0; i < kTracedSteps; ++i) {
    work.prepare();
    work.run();
  }
  context.synchronize();
  return recorder.trace();
}

}  // namespace quern
