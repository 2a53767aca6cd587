// quern bench step: times the parts of a training step.
#include <fmt/format.h>

#include <algorithm>

#include "base/build_info.h"
#include "bench/step_report.h"
#include "bench_commands.h"
#include "bench_flags.h"
#include "tensor/context.h"
#include "train/config_parse.h"
#include "train/config_print.h"
#include "train/setup.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern bench step [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]\n\n"
    "Times forward, backward and optimizer of a model with random weights on random tokens. On "
    "the\n"
    "CPU it also measures the matrix products of the step alone and prints the ratio of the two\n"
    "rates.\n";

const std::vector<ExtraFlag> kFlags = {
    {"phases", "some of fwd (no tape), fwdbwd, step (with clipping and AdamW)", "fwd,fwdbwd,step",
     false},
    {"warmup", "iterations before those measured", "5", false},
    {"steps", "iterations measured", "20", false},
    {"json", "print one line of JSON instead of the table", "", true},
    {"check",
     "on the CPU: exit 1 when the step's matmul FLOP/s are below half of the SGEMM rate at its "
     "shapes",
     "", true},
};

constexpr double kLeastRatio = 0.5;  // of the step's matmul rate to SGEMM's alone

// What torch_lm.py measures unless told otherwise.
Config base_config() {
  Config config;
  config.model.size = "small";
  apply_size(config.model, config.model.size);
  config.model.vocab_size = 10000;
  config.model.context = 512;
  config.train.batch = 4;
  config.optimizer.lr = 1e-4;
  return config;
}

const PhaseResult* find_step(const StepBenchResult& result) {
  const auto found =
      std::find_if(result.phases.begin(), result.phases.end(), [](const PhaseResult& phase) {
        return phase.phase == Phase::step && phase.out_of_memory.empty();
      });
  return found == result.phases.end() ? nullptr : &*found;
}

// The CPU's yardstick. Returns the exit code.
int compare_with_gemm(const StepBenchResult& result, bool check, bool json) {
  const PhaseResult* step = find_step(result);
  if (!step) return check ? 1 : 0;  // not measured; with check: out of memory, as the table says
  const Config& config = result.config;
  const GemmRates rates =
      measure_gemm_rates(config.model, config.train.batch, config.model.context);
  const double seconds = step->total.median / 1e3;
  fmt::print(json ? stderr : stdout, "\n{}", gemm_table(rates, seconds));
  const double ratio = rates.seconds / seconds;
  if (!check || ratio >= kLeastRatio) return 0;
  fmt::print(stderr, "quern: the ratio is {:.3f}, expected at least {}\n", ratio, kLeastRatio);
  return 1;
}

}  // namespace

int run_bench_step(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags, base_config());
  if (parsed.help) {
    fmt::print("{}\n{}", kUsage, config_help(kFlags));
    return 0;
  }
  if (!parsed.positional.empty()) {
    throw UsageError(cat("bench step: found '", parsed.positional[0], "', expected flags alone"));
  }
  const bool check = parsed.extra.at("check") == "true", json = parsed.extra.at("json") == "true";
  const StepBenchOptions options{parse_phases(parsed.extra.at("phases")),
                                 count_of(parsed, "warmup", 0), count_of(parsed, "steps", 1)};
  if (check && std::find(options.phases.begin(), options.phases.end(), Phase::step) ==
                   options.phases.end()) {
    throw UsageError("--check needs the phase step");
  }
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  const bool on_cpu = !context->device().is_cuda();
  if (check && !on_cpu) throw UsageError("--check needs --device cpu");

  const StepBenchResult result = bench_step(config, options);
  fmt::print("{}{}",
             json ? step_json(result, cat("quern-", build_info().version)) : step_table(result),
             json ? "\n" : "");
  std::fflush(stdout);
  return on_cpu && (check || !json) ? compare_with_gemm(result, check, json) : 0;
}

}  // namespace quern
