#include "launch.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <utility>

#include "base/counted.h"
#include "bench_flags.h"
#include "config/config_table.h"
#include "run/make_context.h"
#include "supervisor.h"

namespace quern {

namespace {

void check_gpus(const std::string& command, const ParsedArgs& parsed) {
  const Config& config = parsed.config;
  const bool asked = parsed.extra_given.contains("gpus");
  if (config.compute.device == DeviceChoice::cpu || (config.parallel.ranks == 1 && !asked)) return;
  const int count = cuda::device_count();
  if (count == 0 && config.compute.device == DeviceChoice::automatic) return;
  if (config.parallel.ranks <= count) return;
  const std::string found = asked ? cat("--gpus ", config.parallel.ranks)
                                  : cat("ranks = ", config.parallel.ranks,
                                        " and device = ", value_text(config, "device"));
  throw UsageError(cat(command, ": found ", found, ", but this machine has ", counted(count, "GPU"),
                       kBuiltWithCuda ? "" : " that this build could use: it has no CUDA code",
                       count == 0 ? "; --ranks N --device cpu starts ranks on the CPU"
                       : asked    ? ""
                                  : cat("; --gpus ", count, " starts as many")));
}

}  // namespace

std::vector<ExtraFlag> with_gpus_flag(std::vector<ExtraFlag> flags) {
  flags.push_back({"gpus", "use N GPUs of this machine: ranks = N and device = cuda", ""});
  return flags;
}

std::vector<ExtraFlag> with_rank_flags(std::vector<ExtraFlag> flags) {
  flags = with_gpus_flag(std::move(flags));
  flags.push_back({"store",
                   "meeting point of ranks started by another launcher: tcp:HOST:PORT, a free port "
                   "of rank 0's machine, or file:FOLDER, an absent folder on a shared disk",
                   ""});
  return flags;
}

void apply_gpus(const std::string& command, ParsedArgs& parsed) {
  if (!parsed.extra_given.contains("gpus")) return;
  Config& config = parsed.config;
  const std::string given = cat(command, ": found --gpus ", parsed.extra.at("gpus"), " and ");
  const auto gpus = number_of<int64_t>(parsed, "gpus", 1, 65536);
  if (parsed.flags.contains("ranks") && config.parallel.ranks != gpus) {
    throw UsageError(cat(given, "--ranks ", config.parallel.ranks, ", expected one of the two"));
  }
  if (parsed.flags.contains("device") && config.compute.device == DeviceChoice::cpu) {
    throw UsageError(cat(given, "--device cpu; --ranks N --device cpu starts ranks on the CPU"));
  }
  config.parallel.ranks = gpus;
  config.compute.device = DeviceChoice::cuda;
  parsed.given.insert({"ranks", "device"});
}

std::optional<int> launch_ranks(const Command& command, const Arguments& args, ParsedArgs& parsed,
                                RankPlace& place) {
  apply_gpus(command.name, parsed);
  place = find_place(environment_variables(), parsed.extra.at("store"));
  ParallelSection& parallel = parsed.config.parallel;
  if (place.size > 1) {
    const bool asked = parsed.flags.contains("ranks") || parsed.extra_given.contains("gpus");
    if (asked && parallel.ranks != place.size) {
      throw UsageError(cat(command.name, ": found ", parallel.ranks, " ranks, but ", place.launcher,
                           " has started ", place.size));
    }
    parallel.ranks = place.size;
  }
  validate(parsed.config);
  validate_ranks(parallel);
  if (place.size > 1) return std::nullopt;
  check_gpus(command.name, parsed);
  if (parallel.ranks == 1) return std::nullopt;
  Supervision what{.argv = {"quern"},
                   .ranks = static_cast<int>(parallel.ranks),
                   .limit = std::chrono::seconds(parallel.comm_limit)};
  std::istringstream words(command.name);  // "bench collectives"
  for (std::string word; words >> word;) what.argv.push_back(word);
  what.argv.insert(what.argv.end(), args.begin(), args.end());
  return supervise(what);
}

std::unique_ptr<Context> make_rank_context(const RankPlace& place, const ComputeSection& compute,
                                           uint64_t seed) {
  if (place.size == 1) return make_context(compute, seed);
  // A launcher may show each rank only its own GPU.
  const int count = cuda::device_count();
  const int gpu = count == 1 ? 0 : place.local_rank;
  if (choose_device(compute.device).is_cuda() && count > 0) {
    QUERN_CHECK(gpu < count, "rank ", place.rank, ": found ", counted(place.local_size, "rank"),
                " on this machine, which has ", counted(count, "GPU"), "; expected one GPU a rank");
  }
  ComputeSection own = compute;
  if (own.threads == 0) {
    const auto all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    const auto usable = static_cast<int>(std::thread::hardware_concurrency());
    const int part = (place.may_be_bound ? all : usable) / place.local_size;
    own.threads = std::max(1, std::min(part, usable));
  }
  return make_context(own, seed, gpu);
}

}  // namespace quern
