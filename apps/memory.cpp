// quern memory: the memory that a model needs, predicted and measured.
#include <fmt/format.h>

#include <filesystem>

#include "bench/memory_study.h"
#include "bench_commands.h"
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
  const std::map<std::string, std::string>& extra = run.parsed.extra;
  const std::vector<MemoryPass> passes = parse_passes(extra.at("passes"));
  const bool predict = extra.at("predict") == "true";
  const std::string& out = extra.at("out");
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

BenchJob prepare_blocks(const BenchRun& run) {
  for (const char* flag : {"passes", "predict", "out"}) {
    if (run.parsed.extra_given.contains(flag)) {
      throw UsageError(cat("--", flag, " has no meaning with --block"));
    }
  }
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

BenchJob prepare(const BenchRun& run) {
  return run.parsed.extra.at("block") == "true" ? prepare_blocks(run) : prepare_passes(run);
}

}  // namespace

const Command kMemoryCommand{
    "memory",
    "memory that a model needs, predicted and measured",
    R"(Usage: quern memory [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]
       quern memory --block [--KEY VALUE ...]

Peak memory of a forward and of a whole training step, by purpose: predicted
from the dimensions, and measured with random weights on random tokens. Lists of
size, ctx, batch, precision, attention, kernels, recompute and residual
(--ctx 128,256) give one table of all their combinations. A combination that
runs out of memory gives a row and not an error. Without a GPU, a model of more
than 2 GiB is predicted for a GPU and not measured, unless --device cpu is
given. With --block: the tensors that one block saves for its backward.
)",
    runs_of(
        {kMemoryCommand,
         prepare,
         {"size", "ctx", "batch", "precision", "attention", "kernels", "recompute", "residual"}}),
    bench_flags(
        {{"passes", "some of forward (no tape), step (with backward, clipping and AdamW)",
          "forward,step"},
         {"predict", "do not measure", "", true},
         {"block",
          "what one block saves, for each recompute (none, swiglu, norms, blocks) or those given",
          "", true},
         {"out",
          "a folder for memory.html and memory.pickle (for pytorch.org/memory_viz) of the last "
          "pass",
          ""}}),
    kStepKeys,
    {"mem", "vram", "oom"}};

}  // namespace quern
