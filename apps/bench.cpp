// quern bench: finds the benchmark.
#include <fmt/format.h>

#include <algorithm>

#include "bench_commands.h"
#include "config/config_parse.h"

namespace quern {

namespace {

const std::vector<Command> kBenchmarks = {
    {"step", "forward, backward and optimizer of a model", run_bench_step},
    {"attention", "attention alone, naive and flash, over two grids of shapes",
     run_bench_attention},
    {"kernels", "the memory-bound kernels against the bandwidth of a copy", run_bench_kernels},
    {"decode", "generation, a token at a time, against reading the weights", run_bench_decode},
    {"matmul", "matrix products over a sweep of sizes", run_bench_matmul},
    {"mlp", "a multilayer perceptron, scaled along one dimension after another", run_bench_mlp},
    {"accumulate", "one sum in FP32, FP16, BF16 and mixed: why accumulation is FP32",
     run_bench_accumulate},
    {"dtypes", "which tensor has which dtype under which precision", run_bench_dtypes},
};

void print_help() {
  fmt::print("Usage: quern bench BENCHMARK [--KEY VALUE ...]\n\n");
  for (const Command& benchmark : kBenchmarks) {
    fmt::print("  {:<10} {}\n", benchmark.name, benchmark.summary);
  }
  fmt::print("\n`quern bench BENCHMARK --help` lists a benchmark's flags.\n");
}

}  // namespace

int run_bench(const Arguments& args) {
  const std::string name = args.empty() ? "nothing" : args[0];
  if (name == "--help" || name == "-h") {
    print_help();
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& benchmark : kBenchmarks) {
    if (name == benchmark.name) return benchmark.run({args.begin() + 1, args.end()});
    names.emplace_back(benchmark.name);
  }
  throw UsageError(cat("bench: found '", name, "', expected one of ",
                       fmt::to_string(fmt::join(names, ", ")), did_you_mean(name, names)));
}

}  // namespace quern
