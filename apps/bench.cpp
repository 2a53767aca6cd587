// Runs the benchmarks: reads the flags of every run, makes its Context, and prints its rows.
#include "bench_commands.h"
#include "run/load_model.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

std::vector<ParsedArgs> parse_runs(const Benchmark& benchmark, const Arguments& args,
                                   bool with_model, std::set<std::string>& varying) {
  const Config base = default_config(benchmark.command);
  std::vector<ParsedArgs> runs;
  for (const Arguments& one : expand_lists(args, benchmark.lists, varying)) {
    runs.push_back(parse_args(one, benchmark.command.flags, base,
                              with_model ? ResolveFrom(apply_model_from) : ResolveFrom()));
  }
  return runs;
}

}  // namespace

int run_benchmark(const Benchmark& benchmark, const Arguments& args) {
  const std::string& command = benchmark.command.name;
  const bool with_model = benchmark.command.keys != kContextKeys;
  std::set<std::string> varying;
  std::vector<ParsedArgs> runs = parse_runs(benchmark, args, with_model, varying);
  std::vector<BenchJob> jobs;  // read all of them before the first measurement
  for (ParsedArgs& run : runs) {
    check_positional(run, command);
    check_keys(with_model ? run.flags : run.given, benchmark.command, benchmark.instead);
    jobs.push_back(benchmark.prepare({run, varying, runs.size() == 1}));
  }
  const ParsedArgs& first = runs.front();
  const bool narrow = first.extra.contains("wide") && !first.on("wide");
  Table table(format_of(first), narrow ? kTextWidth : kAnyWidth, peer_name());
  for (size_t i = 0; i < runs.size(); ++i) {
    if (varying.contains("warmup")) {
      table.set_prefix({{{"warmup", "warmup", 0, 6}, count_of(runs[i], "warmup", 0)}});
    }
    const Config& config = runs[i].config;
    const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
    const ContextScope scope(*context);
    jobs[i](table);
  }
  return 0;
}

}  // namespace quern
