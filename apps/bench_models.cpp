// The benchmarks of whole models: the parts of a training step, and generation.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "bench/decode.h"
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
  std::FILE* const out = format == TableFormat::text ? stdout : stderr;
  GemmRates rates;
  const std::string failure = out_of_memory_in(
      [&] { rates = measure_gemm_rates(config.model, config.train.batch, config.model.context); });
  if (!failure.empty()) {
    QUERN_CHECK(!check, "--check: the matrix products alone ran out of memory");
    fmt::print(out, "\nmatrix products alone: out of memory\n");
    return;
  }
  const double seconds = step->total.median / 1e3;
  fmt::print(out, "\n{}", gemm_table(rates, seconds));
  const double ratio = rates.seconds / seconds;
  if (!check || ratio >= kLeastRatio) return;
  fail(fmt::format("the ratio is {:.3f}, expected at least {}", ratio, kLeastRatio));
}

BenchJob prepare_step(const BenchRun& run) {
  const ParsedArgs& parsed = run.parsed;
  const StepBenchOptions options{choices_of<Phase>(parsed, "phases"),
                                 iterations_of(parsed, "warmup", 0),
                                 iterations_of(parsed, "steps", 1)};
  const bool check = parsed.on("check");
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

BenchJob prepare_decode(const BenchRun& run) {
  const ParsedArgs& parsed = run.parsed;
  DecodeBenchOptions options;
  options.batch = parsed.config.train.batch;
  options.prompt = count_of(parsed, "prompt_tokens", 1);
  options.tokens = iterations_of(parsed, "measured", 1);
  options.temperature = parsed.config.sample.temperature;
  return [options, config = parsed.config,
          way = choice_of<Decoder::Way>(parsed, "way")](Table& table) {
    DecodeBenchRow row =
        bench_decode(config.model.size, config.model, config.compute, way, options);
    // The buffer is larger than any cache. Without room for it, the row has no figures of the read.
    const bool on_gpu = Context::current().device().is_cuda();
    out_of_memory_in([&] {
      row.read_tb_per_second = measure_read(on_gpu ? int64_t{1} << 30 : int64_t{1} << 27) / 1e12;
    });
    print_row(table, row);
  };
}

}  // namespace

const Command kBenchStepCommand{
    "bench step",
    "forward, backward and optimizer of a model",
    R"(Usage: quern bench step [--size NAME] [--batch N] [--ctx N] [--KEY VALUE ...]

Times forward, backward and optimizer of a model with random weights on random
tokens. Lists of size, ctx, batch, precision, attention, kernels, moments, graph
and warmup (--ctx 128,256) give one table of all their combinations. A
combination that runs out of memory gives a row and not an error. For a single
configuration on the CPU, the matrix products of the step are also measured
alone, and the ratio of the two rates is printed.
)",
    runs_of({kBenchStepCommand,
             prepare_step,
             {"size", "ctx", "batch", "precision", "attention", "kernels", "moments", "graph",
              "warmup"}}),
    bench_flags({{"phases", "some of fwd (no tape), fwdbwd, step (with clipping and AdamW)",
                  "fwd,fwdbwd,step"},
                 {"warmup", "iterations before those measured; 0 measures the first ones too", "5"},
                 {"steps", "iterations measured", "20"},
                 {"check",
                  "on the CPU: exit 1 when the step's matmul FLOP/s are below half of the SGEMM "
                  "rate at its shapes",
                  "", true}}),
    kStepKeys,
    {},
    {},
    {},
    bench_config};

const Command kBenchDecodeCommand{
    "bench decode",
    "generation of tokens against reading the weights",
    R"(Usage: quern bench decode [--size NAME] [--batch N] [--KEY VALUE ...]

Times the generation of tokens by a model with random weights and compares it
with the time to read its weights once. Lists of size, batch, precision, vocab
and way (--batch 1,8) give one table of all their combinations. A combination
that runs out of memory gives a row and not an error.
)",
    runs_of({kBenchDecodeCommand, prepare_decode, {"size", "vocab", "precision", "batch", "way"}}),
    bench_flags(
        {{"prompt_tokens", "tokens in the cache before the first measured one", "128"},
         {"measured", "measured tokens of each row", "256"},
         {"way",
          "automatic (on a GPU a graph, under bf16 of one kernel for the whole model), launched (a "
          "kernel for each part of a block, one by one) or composed (of the model's own ops)",
          "automatic"}}),
    {"[model]", "[compute]", "batch", "seed", "temperature"},
    {},
    {},
    {},
    decode_config};

}  // namespace quern
