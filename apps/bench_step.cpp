// quern bench step: times the parts of a training step.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bench/step_report.h"
#include "bench_flags.h"
#include "commands.h"
#include "config/config_parse.h"
#include "config/config_print.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    R"(Usage: quern bench step [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]

Times forward, backward and optimizer of a model with random weights on random
tokens. Lists of size, ctx, batch, precision, attention and kernels
(--ctx 128,256) give one table of all their combinations; a combination that
does not fit is a row that says so. For a single configuration on the CPU, the
matrix products of the step are also measured alone, and the ratio of the two
rates is printed.
)";

const std::vector<ExtraFlag> kFlags = {
    {"phases", "some of fwd (no tape), fwdbwd, step (with clipping and AdamW)", "fwd,fwdbwd,step",
     false},
    {"warmup", "iterations before those measured; 0 counts the first ones in", "5", false},
    {"steps", "iterations measured", "20", false},
    {"check",
     "on the CPU: exit 1 when the step's matmul FLOP/s are below half of the SGEMM rate at its "
     "shapes",
     "", true},
};

const std::vector<std::string> kLists = {"size",      "ctx",       "batch",
                                         "precision", "attention", "kernels"};

constexpr double kLeastRatio = 0.5;  // of the step's matmul rate to SGEMM's alone

const PhaseResult* find_step(const StepBenchResult& result) {
  const auto found =
      std::find_if(result.phases.begin(), result.phases.end(), [](const PhaseResult& phase) {
        return phase.phase == Phase::step && phase.out_of_memory.empty();
      });
  return found == result.phases.end() ? nullptr : &*found;
}

// The CPU's yardstick. Returns the exit code.
int compare_with_gemm(const StepBenchResult& result, bool check, TableFormat format) {
  const PhaseResult* step = find_step(result);
  if (!step) return check ? 1 : 0;  // not measured; with check: out of memory, as the table says
  const Config& config = result.config;
  const GemmRates rates =
      measure_gemm_rates(config.model, config.train.batch, config.model.context);
  const double seconds = step->total.median / 1e3;
  fmt::print(format == TableFormat::text ? stdout : stderr, "\n{}", gemm_table(rates, seconds));
  const double ratio = rates.seconds / seconds;
  if (!check || ratio >= kLeastRatio) return 0;
  fmt::print(stderr, "quern: the ratio is {:.3f}, expected at least {}\n", ratio, kLeastRatio);
  return 1;
}

StepBenchOptions options_of(const ParsedArgs& parsed, bool check, bool single) {
  if (!parsed.positional.empty()) {
    throw UsageError(cat("bench step: found '", parsed.positional[0], "', expected flags alone"));
  }
  StepBenchOptions options{parse_phases(parsed.extra.at("phases")),
                           iterations_of(parsed, "warmup", 0), iterations_of(parsed, "steps", 1)};
  const bool has_step =
      std::find(options.phases.begin(), options.phases.end(), Phase::step) != options.phases.end();
  if (check && !has_step) throw UsageError("--check needs the phase step");
  if (check && !single) throw UsageError("--check is for one configuration, found lists");
  return options;
}

// In the scope of the run's context.
void check_device(bool check) {
  if (check && Context::current().device().is_cuda()) {
    throw UsageError("--check needs --device cpu");
  }
}

// To people, with the yardstick on the CPU.
int bench_one(const Config& config, const StepBenchOptions& options, bool check) {
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  check_device(check);
  const StepBenchResult result = bench_step(config, options);
  print_now(step_table(result));
  return context->device().is_cuda() ? 0 : compare_with_gemm(result, check, TableFormat::text);
}

int run_bench_step(const Arguments& args) {
  std::set<std::string> varying;
  const std::vector<ParsedArgs> runs = parse_lists(args, kLists, kFlags, varying);
  const ParsedArgs& first = runs.front();
  const bool check = first.extra.at("check") == "true", single = runs.size() == 1;
  const TableFormat format = format_of(first);
  const StepBenchOptions options = options_of(first, check, single);
  if (format == TableFormat::text && single) return bench_one(first.config, options, check);

  const StepRows rows(format, varying, peer_name());
  for (size_t i = 0; i < runs.size(); ++i) {
    const Config& config = runs[i].config;
    const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
    const ContextScope scope(*context);
    check_device(check);
    const StepBenchResult result = bench_step(config, options);
    if (i == 0) print_now(rows.head(config, result.device));
    print_now(rows.rows(result));
    if (check) return compare_with_gemm(result, check, format);
  }
  return 0;
}

}  // namespace

const Command kBenchStepCommand{"bench step",
                                "forward, backward and optimizer of a model",
                                kUsage,
                                run_bench_step,
                                with_format_flags(kFlags),
                                kStepKeys};

}  // namespace quern
