// quern train: trains a model, or continues a run.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/shell_word.h"
#include "base/slow_path.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "console.h"
#include "join_ranks.h"
#include "launch.h"
#include "run/load_model.h"
#include "supervisor.h"
#include "train/trainer.h"

namespace quern {

namespace {

std::atomic<bool> stop_requested{false};
std::atomic<int> stop_signal{0};
std::atomic<bool> told{false};
// When SIGINT or SIGTERM came first; 0: none has. Several ranks count SIGTERM apart.
std::atomic<int64_t> asked_ms{0}, asked_to_end_ms{0};
std::atomic<bool> progress_line{false};  // on the terminal, where the handler writes
std::atomic<int> rank{0}, ranks{1};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may set them
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t clock_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

// Uses only async-signal-safe calls. A closed pipe raises SIGPIPE for every line until the
// checkpoint, and a closed terminal may raise SIGHUP twice. The second one of the other signals
// ends the program, unless it is the same request (kSameRequest). torchrun and mpirun send their
// ranks a SIGTERM after the terminal's SIGINT, which must not count as the second.
extern "C" void request_stop(int signal) {
  if (!stop_requested) stop_signal = signal;  // Ctrl-C may close the pipe too
  stop_requested = true;
  if (signal == SIGPIPE || signal == SIGHUP) return;
  std::atomic<int64_t>& asked = ranks > 1 && signal == SIGTERM ? asked_to_end_ms : asked_ms;
  const int64_t now = clock_ms();
  int64_t before = 0;
  if (!asked.compare_exchange_strong(before, now) && now - before >= kSameRequest.count()) {
    std::signal(signal, SIG_DFL);
    raise(signal);  // ends the program when this handler returns
  }
  if (told.exchange(true) || rank > 0) return;
  static constexpr char kMessage[] =
      "\r\033[Kquern: stopping after this step; again after a second to stop now\n";
  const std::string_view message = std::string_view(kMessage).substr(progress_line ? 0 : 4);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, message.data(), message.size());
  errno = error;
}

// A resumed run starts from its own configuration; flags override it. Its matrix products keep the
// algorithms saved in its folder, even if the original table has changed.
Config base_config(const Arguments& args) {
  const std::string resume = parse_unvalidated(args, kTrainCommand.flags).config.run.resume;
  // A run that was not resumed has an empty value in its configuration; a flag must not be empty.
  if (resume.empty() &&
      (std::ranges::count(args, "--resume") > 0 || std::ranges::count(args, "--resume=") > 0)) {
    throw UsageError(
        "train: --resume is empty, expected a run's folder; is a variable of the shell not set?");
  }
  if (resume.empty()) return {};
  const RunFolder folder = RunFolder::open(resume);
  Config config = load_config(folder.config().string());
  QUERN_CHECK(!config.data.train.empty(), "resume: ", resume,
              " holds an imported model, expected a training run; begin one from it with --from ",
              shell_word(resume));
  if (std::filesystem::exists(folder.gemm_table())) config.compute.gemm_table.clear();
  return config;
}

// A resumed run keeps its micro-batches a step on another number of ranks: its bits do not change.
void keep_micro_batches(const Config& saved, ParsedArgs& parsed) {
  Config& config = parsed.config;
  const bool given = parsed.flags.contains("accumulate") ||
                     config.train.accumulate != saved.train.accumulate;  // by a file
  const int64_t ranks = config.parallel.ranks, all = config.train.accumulate * saved.parallel.ranks;
  if (config.run.resume.empty() || given || ranks == saved.parallel.ranks) return;
  if (all % ranks != 0) {
    throw UsageError(fmt::format(
        "train: the run has {} micro-batches a step, which {} ranks cannot share equally; give "
        "another number of ranks, or --accumulate for steps of another size",
        all, ranks));
  }
  config.train.accumulate = all / ranks;
}

ParsedArgs parse_train(const Arguments& args, const Config& base) {
  const ParsedArgs parsed = parse_args(args, kTrainCommand.flags, base, apply_model_from);
  if (!parsed.positional.empty()) {
    const std::string& found = parsed.positional[0];
    std::error_code unknown;
    const std::string hint =
        found.find_first_of("./") != std::string::npos || std::filesystem::exists(found, unknown)
            ? fmt::format("; did you mean {} {}?",
                          found.ends_with(".toml") ? "--config" : "--train", shell_word(found))
            : "";
    throw UsageError(fmt::format("train: found '{}', expected only flags{}", found, hint));
  }
  if (!parsed.config.run.resume.empty() && parsed.flags.contains("out")) {
    throw UsageError("train: found --out and --resume; a resumed run stays in its folder");
  }
  return parsed;
}

// Must precede the first printed line: the reader may already be gone.
void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE}) std::signal(signal, request_stop);
  if (std::signal(SIGHUP, request_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // by nohup
}

// Another rank may have got the signal that stopped this one.
int exit_code(const TrainResult& result) {
  return result.interrupted ? 128 + (stop_signal != 0 ? stop_signal.load() : SIGTERM) : 0;
}

int train_as(const RankPlace& place, const ParsedArgs& parsed, Communicator* group) {
  const Config& config = parsed.config;
  if (place.rank > 0) {
    handle_slow_paths({});  // rank 0 says the same
    handle_signals();
    TrainObserver silent;
    return exit_code(Trainer(config, silent, group).run(&stop_requested));
  }
  // mpirun gives its ranks a terminal, even when its own output is a file.
  const Terminal terminal = place.launcher == kOpenMpi ? Terminal() : Terminal::of_stdout();
  progress_line = terminal.live && isatty(STDERR_FILENO) != 0;
  ConsoleObserver console(terminal, parsed.on("print_config"));
  handle_signals();
  Trainer trainer(config, console, group);
  const TrainResult result = trainer.run(&stop_requested);
  console.finish(result);
  return exit_code(result);
}

int run_train(const Arguments& args) {
  const Config base = base_config(args);
  ParsedArgs parsed = parse_train(args, base);
  const Config& config = parsed.config;
  RankPlace place;
  if (const auto code = launch_ranks(kTrainCommand, args, parsed, place)) return *code;
  keep_micro_batches(base, parsed);
  const auto context =
      make_rank_context(place, config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  std::unique_ptr<Communicator> group;
  if (place.size > 1) {
    group = join_ranks(place, context->device(), config);
  }
  rank = place.rank;
  ranks = place.size;
  return as_one_of(group.get(), [&] { return train_as(place, parsed, group.get()); });
}

}  // namespace

const Command kTrainCommand{
    "train",
    "train a model, or continue a run",
    R"(Usage: quern train [--config FILE] [--train TEXT] [--KEY VALUE ...]
       quern train --resume RUN [--KEY VALUE ...]
       quern train --gpus N ...

Trains a Transformer language model and writes a run folder. Ctrl-C, SIGTERM, a
closed terminal or a closed pipe on stdout save a checkpoint after the step and
stop; the exit code is then 128 plus the signal's number. Another Ctrl-C or
SIGTERM, at least one second later, stops at once. --gpus N and --ranks N
--device cpu start N processes that train together; docs/several-gpus.md has
torchrun, Slurm and mpirun.
)",
    [](const Arguments& args) { return as_a_rank(args, [&] { return run_train(args); }); },
    with_rank_flags(
        {{"print_config", "print every key first, not only those that differ from the defaults", "",
          true}}),
    {"size",         "ctx",        "from",         "device",
     "precision",    "train",      "tokenizer",    "validation",
     "steps",        "batch",      "accumulate",   "seed",
     "dropout",      "eval_every", "sample_every", "checkpoint_every",
     "optimizer",    "lr",         "warmup",       "schedule",
     "weight_decay", "ranks",      "[run]",        "prompt"},
    {"run", "learn", "pretrain", "finetune", "resume", "continue"},
    {},
    all_sections()};

}  // namespace quern
