// quern memory: what a model needs in memory, predicted and measured.
#include <fmt/format.h>

#include <filesystem>
#include <set>

#include "bench/memory_study_report.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "profile/memory/memory_page.h"
#include "profile/memory/memory_snapshot.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    R"(Usage: quern memory [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]
       quern memory --block [--KEY VALUE ...]

Peak memory of a forward and of a whole training step, by purpose: predicted
from the dimensions, and measured with random weights on random tokens. Lists of
size, ctx, batch, precision, attention, kernels, recompute and residual
(--ctx 128,256) give one table of all their combinations; a combination that
does not fit is a row that says so. Without a GPU, a model of more than 2 GiB is
predicted for a GPU and not measured, unless --device cpu is given. With
--block: the tensors that one block saves for its backward.
)";

const std::vector<ExtraFlag> kFlags = {
    {"passes", "some of forward (no tape), step (with backward, clipping and AdamW)",
     "forward,step", false},
    {"predict", "do not measure", "", true},
    {"block",
     "what one block saves, for each recompute (none, swiglu, norms, blocks) or those given", "",
     true},
    {"out",
     "a folder for memory.html and memory.pickle (for pytorch.org/memory_viz) of the last pass", "",
     false},
};

const std::vector<std::string> kLists = {"size",      "ctx",     "batch",     "precision",
                                         "attention", "kernels", "recompute", "residual"};

void write_trace(const MemoryStudy& study, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(cat("memory: cannot make the folder ", folder, ": ", error.message()));
  const std::filesystem::path path(folder);
  write_memory_page(study.trace, model_words(study.config), path / "memory.html");
  write_memory_snapshot(study.trace, path / "memory.pickle");
  fmt::print(stderr, "wrote {} and memory.pickle\n", (path / "memory.html").string());
}

int study_passes(const std::vector<ParsedArgs>& runs, const std::set<std::string>& varying) {
  const ParsedArgs& first = runs.front();
  const std::vector<MemoryPass> passes = parse_passes(first.extra.at("passes"));
  const bool predict = first.extra.at("predict") == "true";
  const std::string& out = first.extra.at("out");
  if (!out.empty() && runs.size() > 1)
    throw UsageError("--out is for one configuration, found lists");
  if (!out.empty() && predict) throw UsageError("--out needs a measured pass, found --predict");

  if (!out.empty()) check_writable("out", out);
  const MemoryRows rows(format_of(first), varying, peer_name());
  bool begun = false;
  for (const ParsedArgs& run : runs) {
    const Config& config = run.config;
    const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
    const ContextScope scope(*context);
    const bool on_cpu = config.compute.device == DeviceChoice::cpu;
    MemoryStudy study;
    for (const MemoryPass pass : passes) {
      study = study_memory(config, pass, predict, on_cpu);
      if (!begun) print_now(rows.head(study));
      begun = true;
      print_now(rows.rows(study));
    }
    if (out.empty()) continue;
    if (study.peak_bytes == 0) {
      fail(cat(
          "memory: nothing was measured, so there is nothing to write to ", out,
          study.out_of_memory.empty() ? "; --device cpu measures models of this size too" : ""));
    }
    write_trace(study, out);
  }
  return 0;
}

int study_blocks(const std::vector<ParsedArgs>& runs) {
  const ParsedArgs& first = runs.front();
  for (const char* flag : {"passes", "predict", "out"}) {
    if (first.extra_given.contains(flag)) {
      throw UsageError(cat("--", flag, " has no meaning with --block"));
    }
  }
  const BlockRows rows(format_of(first), peer_name());
  bool begun = false;
  for (const ParsedArgs& run : runs) {
    Config config = run.config;
    const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
    const ContextScope scope(*context);
    std::vector<Recompute> kinds{Recompute::none, Recompute::swiglu, Recompute::norms,
                                 Recompute::blocks};
    if (run.given.contains("recompute")) kinds = {config.compute.recompute};
    for (const Recompute recompute : kinds) {
      config.compute.recompute = recompute;
      const BlockStudy study = study_block(config);
      if (!begun) print_now(rows.head(study, cat(context->device())));
      begun = true;
      print_now(rows.rows(study));
    }
  }
  return 0;
}

int run_memory(const Arguments& args) {
  std::set<std::string> varying;
  const std::vector<ParsedArgs> runs = parse_lists(args, kLists, kFlags, varying);
  const ParsedArgs& first = runs.front();
  if (!first.positional.empty()) {
    throw UsageError(cat("memory: found '", first.positional[0], "', expected flags alone"));
  }
  return first.extra.at("block") == "true" ? study_blocks(runs) : study_passes(runs, varying);
}

}  // namespace

const Command kMemoryCommand{"memory",
                             "memory that a model needs, predicted and measured",
                             kUsage,
                             run_memory,
                             with_format_flags(kFlags),
                             kStepKeys,
                             {"mem", "vram", "oom"}};

}  // namespace quern
