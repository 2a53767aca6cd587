// quern bench step: times the parts of a training step.
#include <fmt/format.h>

#include <algorithm>

#include "bench/gemm_rate.h"
#include "bench/step.h"
#include "bench_commands.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr double kLeastRatio = 0.5;  // minimum ratio of the step's matmul rate to SGEMM's alone

// Prints the CPU's SGEMM reference below the table. With `check`, throws when the step is too slow.
void compare_with_gemm(const StepBenchResult& result, bool check, TableFormat format) {
  const auto step =
      std::find_if(result.phases.begin(), result.phases.end(), [](const PhaseResult& phase) {
        return phase.phase == Phase::step && phase.out_of_memory.empty();
      });
  if (step == result.phases.end()) {
    QUERN_CHECK(!check, "--check: the step ran out of memory");
    return;
  }
  const Config& config = result.config;
  const GemmRates rates =
      measure_gemm_rates(config.model, config.train.batch, config.model.context);
  const double seconds = step->total.median / 1e3;
  fmt::print(format == TableFormat::text ? stdout : stderr, "\n{}", gemm_table(rates, seconds));
  const double ratio = rates.seconds / seconds;
  if (!check || ratio >= kLeastRatio) return;
  fail(fmt::format("the ratio is {:.3f}, expected at least {}", ratio, kLeastRatio));
}

BenchJob prepare(const BenchRun& run) {
  const ParsedArgs& parsed = run.parsed;
  const StepBenchOptions options{parse_phases(parsed.extra.at("phases")),
                                 iterations_of(parsed, "warmup", 0),
                                 iterations_of(parsed, "steps", 1)};
  const bool check = parsed.extra.at("check") == "true";
  const bool has_step =
      std::find(options.phases.begin(), options.phases.end(), Phase::step) != options.phases.end();
  if (check && !has_step) throw UsageError("--check needs the phase step");
  if (check && !run.single) throw UsageError("--check is for one configuration, found lists");
  return [=, config = parsed.config, varying = run.varying, single = run.single](Table& table) {
    const bool on_gpu = Context::current().device().is_cuda();
    if (check && on_gpu) throw UsageError("--check needs --device cpu");
    const bool text = single && table.format() == TableFormat::text;
    const StepBenchResult result = bench_step(config, options);
    print_now(text ? step_table(result) : step_rows(table, result, varying));
    if (check || (text && !on_gpu)) compare_with_gemm(result, check, table.format());
  };
}

}  // namespace

const Command kBenchStepCommand{
    "bench step",
    "forward, backward and optimizer of a model",
    R"(Usage: quern bench step [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]

Times forward, backward and optimizer of a model with random weights on random
tokens. Lists of size, ctx, batch, precision, attention, kernels, graph and
warmup (--ctx 128,256) give one table of all their combinations. A combination
that runs out of memory gives a row and not an error. For a single configuration
on the CPU, the matrix products of the step are also measured alone, and the
ratio of the two rates is printed.
)",
    runs_of({kBenchStepCommand,
             prepare,
             {"size", "ctx", "batch", "precision", "attention", "kernels", "graph", "warmup"}}),
    bench_flags({{"phases", "some of fwd (no tape), fwdbwd, step (with clipping and AdamW)",
                  "fwd,fwdbwd,step"},
                 {"warmup", "iterations before those measured; 0 counts the first ones in", "5"},
                 {"steps", "iterations measured", "20"},
                 {"check",
                  "on the CPU: exit 1 when the step's matmul FLOP/s are below half of the SGEMM "
                  "rate at its "
                  "shapes",
                  "", true}}),
    kStepKeys};

}  // namespace quern
