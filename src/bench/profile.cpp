#include "bench/profile.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "autograd/tape.h"
#include "base/error.h"
#include "bench/profile_report.h"
#include "bench/profile_targets.h"
#include "bench/random_batch.h"
#include "bench/timeline.h"
#include "profile/clock.h"
#include "profile/memory/memory_recorder.h"
#include "profile/time/folded.h"
#include "profile/time/recorder.h"
#include "profile/time/summary.h"
#include "profile/time/trace_json.h"
#include "run/make_optimizer.h"
#include "run/model_instance.h"
#include "train/choose_recompute.h"
#include "train/training_step.h"

namespace quern {

namespace {

constexpr size_t kBatches = 4;         // in turn
constexpr int64_t kTracedSteps = 2;    // of the memory: the second allocates as all later ones do
constexpr int64_t kCaptureWarmup = 2;  // a step runs once before it is captured

// What is profiled, a step at a time.
class Work {
 public:
  virtual ~Work() = default;
  virtual void prepare() {}  // before each step, outside of what is timed
  virtual void step() = 0;
};

class Part : public Work {
 public:
  explicit Part(ProfilePart part) : part_(std::move(part)) {}
  void prepare() override { part_.prepare(); }
  void step() override { part_.run(); }

 private:
  ProfilePart part_;
};

// A model with random weights, trained as the trainer does it, or less of that.
class Training : public Work {
 public:
  Training(const Config& config, Phase phase, bool capture)
      : phase_(phase),
        instance_(config.model, decided_options(config), config.model.init, phase != Phase::fwd,
                  static_cast<uint64_t>(config.train.seed)) {
    for (RandomBatch& batch : batches_) batch = random_batch(config, config.train.batch);
    if (phase != Phase::step) return;
    optimizer_ = make_optimizer(instance_.arena, config);
    optimizer_->set_learning_rate(config.optimizer.lr);
    step_.emplace(instance_, *optimizer_, capture);
  }

  void step() override {
    const RandomBatch& batch = batches_[next_++ % kBatches];
    switch (phase_) {
      case Phase::fwd: {
        const NoGrad no_grad;
        const RangeScope range(RangeKind::phase, "forward");
        instance_.model.loss(batch.tokens, batch.targets);
        return;
      }
      case Phase::fwdbwd:
        instance_.arena.zero_grad();
        forward_backward(instance_, batch.tokens, batch.targets, 1);
        return;
      case Phase::step: step_->run(batch.tokens, batch.targets, {}); return;
    }
    fail("profile: unknown phase");
  }

 private:
  Phase phase_;
  ModelInstance instance_;
  std::array<RandomBatch, kBatches> batches_;
  size_t next_ = 0;
  std::unique_ptr<Optimizer> optimizer_;
  std::optional<TrainingStep> step_;
};

std::unique_ptr<Work> make_work(const Config& config, const ProfileOptions& options) {
  if (options.target != "train") {
    return std::make_unique<Part>(make_part(options.target, config));
  }
  return std::make_unique<Training>(config, options.phase, options.graph);
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

// Milliseconds: the median of steps each of which waits for the device, as the recorder's do.
double time_steps(Work& work, int64_t steps) {
  const Context& context = Context::current();
  std::vector<double> ms;
  for (int64_t i = 0; i < steps; ++i) {
    work.prepare();
    context.synchronize();
    const int64_t begin = profile_clock();
    work.step();
    context.synchronize();
    ms.push_back(static_cast<double>(profile_clock() - begin) / 1e6);
  }
  return summarize(ms).median;
}

// The steps, after one that is not kept: CUPTI sets itself up at the first.
void record_steps(Profile& profile, Work& work, const ProfileOptions& options) {
  {
    Profile first;
    Recorder recorder(first, {options.cupti});
    work.prepare();
    recorder.begin_step();
    work.step();
    recorder.end_step();
    recorder.finish();
  }
  Recorder recorder(profile, {options.cupti});
  for (int64_t i = 0; i < options.steps; ++i) {
    work.prepare();
    recorder.begin_step();
    work.step();
    recorder.end_step();
  }
  recorder.finish();
}

// A graph is captured by the second step of its kind, under the recorder, which learns there what
// the graph's kernels belong to; then it is replayed.
void record_replays(Profile& profile, Work& work, const ProfileOptions& options) {
  work.step();
  Recorder recorder(profile, {options.cupti});
  work.step();
  work.step();
  for (int64_t i = 0; i < options.steps; ++i) {
    recorder.begin_step();
    work.step();
    recorder.end_step();
  }
  recorder.finish();
}

void add_note(Profile& profile, const std::string& note) {
  profile.note = note + (profile.note.empty() ? "" : "; ") + profile.note;
}

}  // namespace

void check_options(const Config& config, const ProfileOptions& options) {
  check_profile_target(options.target);
  if (options.steps < 1) {
    throw UsageError(cat("--steps is ", options.steps, ", expected at least 1"));
  }
  if (options.warmup < 0) {
    throw UsageError(cat("--warmup is ", options.warmup, ", expected 0 or more"));
  }
  const bool training = options.target == "train";
  if (!training && options.phase != Phase::step) {
    throw UsageError(cat("--phases is ", name_of(options.phase), ", which is of --target train, ",
                         "found ", options.target));
  }
  if (training && config.model.vocab_size < 1) {
    throw UsageError("--vocab is 0, expected at least 1: the profile has no data to tell it");
  }
  if (!options.graph) return;
  if (!training || options.phase != Phase::step) {
    throw UsageError("--graph is for whole steps of --target train: nothing else is captured");
  }
  if (!Context::current().device().is_cuda()) {
    throw UsageError("--graph needs a GPU: the CPU has no graphs");
  }
  if (config.compute.kernels != KernelKind::fused) {
    throw UsageError("--graph needs --kernels fused: the naive optimizer reads back its norm");
  }
}

Profile profile_steps(const Config& config, const ProfileOptions& options) {
  check_options(config, options);
  Profile profile;
  profile.target = target_text(options);
  profile.captured = options.graph;
  std::unique_ptr<Work> work = make_work(config, options);
  const int64_t warmup = options.graph ? std::max(options.warmup, kCaptureWarmup) : options.warmup;
  for (int64_t i = 0; i < warmup; ++i) {
    work->prepare();
    work->step();
  }
  profile.unprofiled_step_ms = time_steps(*work, options.steps);
  if (options.graph) {
    work.reset();  // its graph was captured unseen: another one is
    work = make_work(config, options);
    record_replays(profile, *work, options);
    if (profile.gpu_times == GpuTimes::events) {
      add_note(profile, "without CUPTI a replayed graph cannot be told apart: it is one op");
    }
    return profile;
  }
  record_steps(profile, *work, options);
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
  context.allocator(context.device())->release_cached();
  const MemoryRecorder recorder;
  const std::unique_ptr<Work> work = make_work(config, launched);
  for (int64_t i = 0; i < kTracedSteps; ++i) {
    work->prepare();
    work->step();
  }
  context.synchronize();
  return recorder.trace();
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

void write_file(const fs::path& path, const std::function<void(std::ostream&)>& write) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file) write(file);
  file.close();
  if (!file) fail(cat("profile: cannot write ", path.string(), ": ", std::strerror(errno)));
}

void write_file(const fs::path& path, const std::string& text) {
  write_file(path, [&](std::ostream& out) { out << text; });
}

const char* name_of(GpuTimes times) {
  switch (times) {
    case GpuTimes::none: return "none";
    case GpuTimes::cupti: return "cupti";
    case GpuTimes::events: return "events";
  }
  fail("profile: unknown kind of GPU times");
}

Json split_json(const StepSplit& split) {
  Json json{{"step_ms", split.step_ms}};
  for (const WorkKind kind : kAllWork) json["work_ms"][name_of(kind)] = split.of(kind);
  for (const IdleKind kind : kAllIdle) json["idle_ms"][name_of(kind)] = split.of(kind);
  json["launch_ms"] = split.launch_ms;
  json["launches"] = split.launches;
  json["wait_ms"] = split.wait_ms;
  return json;
}

// The rows as profile_table prints them in JSON, an object a line.
Json table_json(const Profile& profile, const std::string& group,
                const ProfileReportOptions& options) {
  std::istringstream lines(profile_table(profile, group, options, TableFormat::json));
  Json rows = Json::array();
  for (std::string line; std::getline(lines, line);) {
    rows.push_back(Json::parse(line));
    rows.back().erase("group");
  }
  return rows;
}

std::string profile_json(const Profile& profile, const ProfileReportOptions& options) {
  Json json{{"target", profile.target},
            {"device", profile.device},
            {"note", profile.note},
            {"gpu_times", name_of(profile.gpu_times)},
            {"captured", profile.captured},
            {"steps", profile.steps.size()},
            {"unprofiled_step_ms", profile.unprofiled_step_ms},
            {"summary", summary_in_words(profile)},
            {"split", split_json(split_step(profile))}};
  for (const char* group : {"phase", "module", "op", "shape", "kernel"}) {
    json["tables"][group] = table_json(profile, group, options);
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void write_tables(const Profile& profile, const fs::path& folder, ProfileReportOptions options) {
  options.rows = 0;
  write_file(folder / "table.txt", profile_report(profile, options, TableFormat::text));
  for (const auto& [group, name] : {std::pair{"phase", "phases.csv"},
                                    {"module", "modules.csv"},
                                    {"op", "ops.csv"},
                                    {"shape", "shapes.csv"},
                                    {"kernel", "kernels.csv"}}) {
    const std::string table = profile_table(profile, group, options, TableFormat::csv);
    if (table.empty()) {
      fs::remove(folder / name);  // of an older profile
    } else {
      write_file(folder / name, table);
    }
  }
}

}  // namespace

void write_profile(const Profile& profile, const fs::path& folder,
                   const ProfileReportOptions& options) {
  check_options(options);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(cat("profile: cannot make the folder ", folder.string(), ": ", error.message()));
  write_file(folder / "trace.json", [&](std::ostream& out) { write_trace(profile, out); });
  write_tables(profile, folder, options);
  write_file(folder / "profile.json", profile_json(profile, options));
  write_file(folder / "cpu.folded", [&](std::ostream& out) { write_cpu_stacks(profile, out); });
  if (profile.gpu_times == GpuTimes::none) {
    fs::remove(folder / "gpu.folded");
    return;
  }
  write_file(folder / "gpu.folded", [&](std::ostream& out) { write_gpu_stacks(profile, out); });
}

}  // namespace quern
