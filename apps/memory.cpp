// quern memory: the memory that a model needs, predicted and measured.
#include <fmt/format.h>

#include <filesystem>
#include <initializer_list>
#include <set>
#include <utility>
#include <vector>

#include "bench/memory_study.h"
#include "bench/scaling.h"
#include "bench_commands.h"
#include "config/config_table.h"
#include "profile/memory/memory_page.h"
#include "profile/memory/memory_snapshot.h"

namespace quern {

namespace {

void write_trace(const MemoryStudy& study, const std::filesystem::path& folder) {
  write_memory_page(study.trace, model_words(study.config), folder / "memory.html");
  write_memory_snapshot(study.trace, folder / "memory.pickle");
  fmt::print(stderr, "wrote {} and memory.pickle\n", (folder / "memory.html").string());
}

BenchJob prepare_passes(const BenchRun& run) {
  validate_ranks(run.parsed.config.parallel);
  const auto passes = choices_of<MemoryPass>(run.parsed, "passes");
  const bool predict = run.parsed.on("predict");
  const std::string& out = run.parsed.extra.at("out");
  if (!out.empty() && !run.single) throw UsageError("--out is for one configuration, found lists");
  if (!out.empty() && predict) throw UsageError("--out needs a measured pass, found --predict");
  if (!out.empty()) check_writable("out", out);
  return [=, config = run.parsed.config, varying = run.varying](Table& table) {
    const bool on_cpu = config.compute.device == DeviceChoice::cpu;
    MemoryStudy study;
    for (const MemoryPass pass : passes) {
      study = study_memory(config, pass, predict, on_cpu);
      print_now(memory_rows(table, study, varying));
    }
    if (out.empty()) return;
    if (study.peak_bytes == 0) {
      fail(cat(
          "memory: nothing was measured, so there is nothing to write to ", out,
          study.out_of_memory.empty() ? "; --device cpu measures models of this size too" : ""));
    }
    write_trace(study, out);
  };
}

// Throws for a flag that is given although another one leaves it without a meaning.
void refuse(const std::set<std::string>& given, std::initializer_list<const char*> flags,
            const char* other) {
  for (const char* flag : flags) {
    if (given.contains(flag)) throw UsageError(cat("--", flag, " has no meaning with ", other));
  }
}

BenchJob prepare_blocks(const BenchRun& run) {
  refuse(run.parsed.extra_given, {"passes", "predict", "out"}, "--block");
  std::vector<Recompute> kinds{Recompute::none, Recompute::swiglu, Recompute::norms,
                               Recompute::blocks};
  if (run.parsed.given.contains("recompute")) kinds = {run.parsed.config.compute.recompute};
  std::set<std::string> varying = run.varying;
  if (kinds.size() > 1) varying.insert("recompute");
  return [kinds, varying, config = run.parsed.config](Table& table) mutable {
    for (const Recompute recompute : kinds) {
      config.compute.recompute = recompute;
      print_now(block_rows(table, study_block(config), varying));
    }
  };
}

constexpr const char* kClusterFlags[] = {"nodes", "step_ms", "tflops", "link", "network"};
constexpr double kBf16Tflops = 500.0;  // of an H100 in the forward and backward of 1.5B

// One strategy, or with parallel = auto those that there are.
BenchJob prepare_cluster(const BenchRun& run) {
  refuse(run.parsed.extra_given, {"passes", "predict", "out", "block"}, "--gpus");
  refuse(run.parsed.flags, {"ranks", "device"}, "--gpus, which predicts for GPUs");
  if (run.parsed.config.compute.offload != Offload::none) {
    throw UsageError(cat("offload is ", value_text(run.parsed.config, "offload"),
                         ", expected none with --gpus, whose update is of the GPU's memory"));
  }
  run.parsed.config.compute.device = DeviceChoice::cpu;  // a file may ask for an absent GPU
  Cluster cluster;
  cluster.gpus = number_of<int64_t>(run.parsed, "gpus", 1, 65536);
  cluster.nodes = number_of<int64_t>(run.parsed, "nodes", 1, cluster.gpus);
  const std::pair<const char*, double*> rates[] = {{"step_ms", &cluster.step_ms},
                                                   {"tflops", &cluster.tflops},
                                                   {"link", &cluster.link},
                                                   {"network", &cluster.network}};
  for (const auto& [flag, rate] : rates) {
    if (run.parsed.extra_given.contains(flag)) *rate = number_of(run.parsed, flag, 1e-3, 1e6);
  }
  const bool timed = cluster.step_ms > 0.0, rated = cluster.tflops > 0.0;
  if (timed && rated) throw UsageError("--tflops has no meaning with --step_ms");
  if (!timed && !rated) {
    if (run.parsed.config.compute.precision != Precision::bf16) {
      throw UsageError("--gpus needs --step_ms or --tflops where precision is not bf16");
    }
    cluster.tflops = kBf16Tflops;
  }
  std::vector<Parallel> strategies{run.parsed.config.parallel.parallel};
  if (strategies[0] == Parallel::none && cluster.gpus > 1) {
    throw UsageError("parallel is none, which is for one GPU; found --gpus " +
                     run.parsed.extra.at("gpus"));
  }
  if (strategies[0] == Parallel::automatic) {
    strategies = {Parallel::ddp};
    if (cluster.gpus > 1) {
      strategies.insert(strategies.end(), {Parallel::zero1, Parallel::zero2, Parallel::fsdp});
    }
  }
  return [=, config = run.parsed.config, varying = run.varying](Table& table) mutable {
    for (const Parallel strategy : strategies) {
      config.parallel.parallel = strategy;
      print_now(scaling_rows(table, predict_scaling(config, cluster), varying));
    }
  };
}

BenchJob prepare(const BenchRun& run) {
  if (run.parsed.extra_given.contains("gpus")) return prepare_cluster(run);
  for (const char* flag : kClusterFlags) {
    if (run.parsed.extra_given.contains(flag)) throw UsageError(cat("--", flag, " needs --gpus"));
  }
  return run.parsed.on("block") ? prepare_blocks(run) : prepare_passes(run);
}

}  // namespace

const Command kMemoryCommand{
    "memory",
    "memory that a model needs, predicted and measured",
    R"(Usage: quern memory [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]
       quern memory --block [--KEY VALUE ...]
       quern memory --gpus N [--nodes M] [--KEY VALUE ...]

Peak memory of a forward and of a whole training step, by purpose: predicted
from the dimensions, and measured with random weights on random tokens. Lists of
size, ctx, batch, precision, attention, kernels, recompute, residual and moments
(--ctx 128,256) give one table of all their combinations. A combination that
runs out of memory gives a row and not an error. Without a GPU, a model of more
than 2 GiB is predicted for a GPU and not measured, unless --device cpu is
given. With --block: the tensors that one block saves for its backward. With
--gpus: predicted memory and time of a step on N GPUs, without using any.
)",
    runs_of({kMemoryCommand,
             prepare,
             {"size", "ctx", "batch", "precision", "attention", "kernels", "recompute", "residual",
              "moments"}}),
    bench_flags(
        {{"passes", "some of forward (no tape), step (with backward, clipping and AdamW)",
          "forward,step"},
         {"predict", "do not measure", "", true},
         {"block",
          "the tensors that a block saves, for each recompute (none, swiglu, norms, blocks) or the "
          "given one",
          "", true},
         {"gpus", "predict a step of this many GPUs, on all nodes together", ""},
         {"nodes", "number of nodes that have the GPUs", "1"},
         {"step_ms",
          "milliseconds of a step of one micro-batch on one GPU, as `quern bench step` measures it",
          ""},
         {"tflops", "TFLOP/s of one GPU in forward and backward, in place of step_ms; 500 for bf16",
          ""},
         {"link", "GB/s that a GPU sends, and receives, within a node",
          fmt::format("{}", Cluster().link)},
         {"network", "GB/s that a GPU sends, and receives, between nodes",
          fmt::format("{}", Cluster().network)},
         {"out",
          "a folder for memory.html and memory.pickle (for pytorch.org/memory_viz) of the last "
          "pass",
          ""}}),
    kStepKeys,
    {"mem", "vram", "oom"},
    {},
    {"[parallel]", "accumulate"},
    bench_config};

}  // namespace quern
