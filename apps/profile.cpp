// quern profile: shows where the time of a step goes.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/slow_path.h"
#include "bench/profile.h"
#include "bench/profile_report.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_print.h"
#include "join_ranks.h"
#include "launch.h"
#include "profile/memory/memory_page.h"
#include "profile/memory/memory_snapshot.h"
#include "run/load_model.h"
#include "run/make_context.h"
#include "tensor/context.h"
#include "train/memory_report.h"

namespace quern {

namespace {

ProfileOptions options_of(const ParsedArgs& parsed) {
  check_positional(parsed, "profile");
  ProfileOptions options;
  options.target = parsed.extra.at("target");
  options.phase = choice_of<Phase>(parsed, "phases");
  options.warmup = iterations_of(parsed, "warmup", 0);
  options.steps = iterations_of(parsed, "steps", 1);
  options.graph = truth_of(parsed, "graph");
  options.cupti = parsed.extra.at("cupti");
  return options;
}

ProfileReportOptions report_options_of(const ParsedArgs& parsed) {
  ProfileReportOptions options;
  options.group_by =
      words_of(parsed, "group_by", {"step", "phase", "module", "op", "shape", "kernel"});
  options.sort = parsed.extra.at("sort");
  options.rows = count_of(parsed, "rows", 0);
  check_options(options);
  return options;
}

int run_profile(const Arguments& args) {
  ParsedArgs parsed = parse_args(args, kProfileCommand.flags, bench_config(), apply_model_from);
  check_keys(parsed.flags, kProfileCommand);
  const ProfileOptions options = options_of(parsed);
  const ProfileReportOptions report = report_options_of(parsed);
  const TableFormat format = format_of(parsed);
  const bool with_memory = truth_of(parsed, "memory");
  const std::filesystem::path folder = parsed.extra.at("out");
  const Config& config = parsed.config;
  apply_gpus(kProfileCommand.name, parsed);
  check_options(config, options);
  const bool by_kernel = std::ranges::count(report.group_by, "kernel") > 0;
  if (by_kernel && !choose_device(config.compute.device).is_cuda()) {
    throw UsageError("--group_by kernel needs a GPU: the CPU has no kernel times");
  }
  RankPlace place;
  if (const auto code = launch_ranks(kProfileCommand, args, parsed, place)) return *code;
  const auto context =
      make_rank_context(place, config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  check_graph(config, options);
  std::unique_ptr<Communicator> group;
  if (place.size > 1) group = join_ranks(place, context->device(), config);
  if (place.rank == 0) as_one_of(group.get(), [&] { check_writable("out", folder); });
  if (place.rank > 0) {  // as rank 0 does, in silence
    handle_slow_paths({});
    as_one_of(group.get(), [&] { return profile_steps(config, options, group.get()); });
    return 0;
  }

  MemoryWatch watch;
  const MemoryPass pass = options.phase == Phase::fwd ? MemoryPass::forward : MemoryPass::step;
  const auto watched = [&](const auto& f) {  // only training has a memory prediction
    return options.target == "train" ? watch.run(config, pass, folder, f) : f();
  };
  const Profile profile = as_one_of(group.get(), [&] {
    return watched([&] { return profile_steps(config, options, group.get()); });
  });
  print_now(profile_report(profile, report, format));  // print before writing files, which may fail
  write_profile(profile, folder, report);
  if (with_memory && !group) {
    const MemoryTrace memory = watched([&] { return trace_memory(config, options); });
    const bool whole = options.target == "train";
    write_memory_page(memory, whole ? model_words(config) : options.target, folder / "memory.html");
    write_memory_snapshot(memory, folder / "memory.pickle");
  }
  if (format == TableFormat::text) print_now(cat("\nwritten to ", folder.string(), "\n"));
  return 0;
}

}  // namespace

const Command kProfileCommand{
    "profile",
    "time of a training step by op and kernel",
    R"(Usage: quern profile [--size NAME] [--batch N] [--ctx N] [--target NAME]
                     [--KEY VALUE ...]
       quern profile --gpus N ...

Runs training steps with random weights on random tokens, or a single part,
and shows where their time goes, by op, kernel, phase and module. Writes to the
folder --out: tables, trace.json for ui.perfetto.dev, stacks for speedscope.app
and the memory in use. With --gpus N or --ranks N --device cpu it profiles
rank 0 of N and shows the communication and its exposed part.
)",
    [](const Arguments& args) { return as_a_rank(args, [&] { return run_profile(args); }); },
    with_rank_flags(with_format_flags(
        {{"target", "train, or a single part", "train", false, profile_targets},
         {"phases", "for train: fwd (no tape), fwdbwd, or step (with clipping and AdamW)", "step"},
         {"warmup", "steps before those measured", "3"},
         {"steps", "recorded steps, after as many without the recorder", "5"},
         {"out", "the folder to write to", "profile"},
         {"group_by",
          "some of step, phase, module, op, shape (ops by their inputs' shapes) and kernel", ""},
         {"sort", "cpu, cpu-self, gpu, gpu-self, calls or name", ""},
         {"rows", "rows of a table, at most; 0: all", "20"},
         {"graph", "replay the training step as a CUDA graph instead of launching every kernel",
          "false", true},
         {"memory", "one more run, of one rank, for memory.html and memory.pickle", "true", true},
         {"cupti", "auto, the path of libcupti.so, or off: CUDA events time ops instead",
          "auto"}})),
    kStepKeys,
    {"trace", "nsys", "roofline"},
    {},
    {"[parallel]"},
    bench_config};

}  // namespace quern
