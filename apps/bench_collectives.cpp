// `quern bench collectives`: runs once a rank. Rank 0 prints.
#include "bench/collectives.h"

#include <algorithm>

#include "bench_flags.h"
#include "commands.h"
#include "join_ranks.h"
#include "launch.h"

namespace quern {

namespace {

CollectiveBenchOptions options_of(const ParsedArgs& parsed) {
  CollectiveBenchOptions options;
  if (parsed.extra_given.contains("collectives")) {
    options.collectives = choices_of<Collective>(parsed, "collectives");
  }
  if (parsed.extra_given.contains("places")) {
    options.places = choices_of<ResultPlace>(parsed, "places");
  }
  const auto is_case = [&](Collective c) {
    return std::ranges::any_of(options.places, [&](ResultPlace at) { return has_place(c, at); });
  };
  if (std::ranges::none_of(options.collectives, is_case)) {
    throw UsageError(
        "--places has no case of --collectives: exchange is out of place, the "
        "ordered ones in place");
  }
  options.sizes = counts_of(parsed, "sizes", 4);
  options.warmup = iterations_of(parsed, "warmup", 1);
  options.steps = iterations_of(parsed, "steps", 1);
  check_collective_sizes(options.sizes);
  return options;
}

// "NCCL 2.28.3, 2 ranks on NVIDIA H200".
std::string heading(const Communicator& ranks) {
  const Device device = Context::current().device();
  return cat(ranks.engine(), ", ", ranks.size(), " ranks on ",
             device.is_cuda() ? cuda::device_info(device.index).name : "the CPU", '\n');
}

int run_collectives(const Arguments& args) {
  const Command& command = kBenchCollectivesCommand;
  ParsedArgs parsed = parse_args(args, command.flags, Config{});
  check_positional(parsed, command.name);
  check_keys(parsed.given, command);
  const CollectiveBenchOptions options = options_of(parsed);
  Table table(format_of(parsed), parsed.on("wide") ? kAnyWidth : kTextWidth, peer_name());
  RankPlace place;
  if (const std::optional<int> code = launch_ranks(command, args, parsed, place)) return *code;
  if (place.size == 1) {
    throw UsageError(cat(
        command.name, ": found one rank, expected several: --gpus N, or --ranks N --device cpu"));
  }
  const auto context = make_rank_context(place, parsed.config.compute, 0);
  const ContextScope scope(*context);
  const auto ranks = join_ranks(place, context->device(), parsed.config);
  const std::string head = heading(*ranks);
  as_one_of(ranks.get(), [&] {
    bench_collectives(*ranks, options, [&](const CollectiveRow& row) {
      if (place.rank == 0) print_now(table.add(table_row(row), head));
    });
  });
  ranks->barrier("the end");
  return 0;
}

template <class E>
std::vector<std::string> names() {
  return {kNamesOf<E>.begin(), kNamesOf<E>.end()};
}

}  // namespace

const Command kBenchCollectivesCommand{
    "bench collectives",
    "collectives between ranks: time and bus bandwidth",
    R"(Usage: quern bench collectives --gpus N [--FLAG VALUE ...]
       quern bench collectives --ranks N --device cpu [--FLAG VALUE ...]

Checks the result of each collective between the ranks on random data, then
times it: NCCL between GPUs, Gloo between CPUs. Bus bandwidth is that of
nccl-tests: bytes over time, times 2 (N - 1) / N for all_reduce, 1 for broadcast
and (N - 1) / N for the others.
)",
    [](const Arguments& args) { return as_a_rank(args, [&] { return run_collectives(args); }); },
    with_rank_flags(
        bench_flags({{"collectives", "those to time; all by default", "", false, names<Collective>},
                     {"places",
                      "in: the result replaces the data, out: it goes to other memory; "
                      "both by default. exchange has only out, the ordered ones only in",
                      "", false, names<ResultPlace>},
                     {"sizes",
                      "bytes of a rank's FP32 data; by default 1024 to 1073741824, on "
                      "the CPU to 16777216, each 4 times the previous one",
                      ""},
                     {"warmup", "calls before those measured", "5"},
                     {"steps", "measured calls; the table shows their median", "20"}})),
    {"device", "threads", "ranks", "comm_limit"}};

}  // namespace quern
