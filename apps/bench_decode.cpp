// quern bench decode: times generation, a token of every row at a time.
#include "bench/decode.h"
#include "run/load_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bench_flags.h"
#include "commands.h"
#include "config/config_print.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    R"(Usage: quern bench decode [--size NAME] [--batch N] [--KEY VALUE ...]

Times the generation of tokens by a model with random weights and compares it
with the time to read its weights once. Lists of size, batch, precision, vocab
and way (--batch 1,8) give one table of all their combinations; a combination
that does not fit is a row that says so.
)";

const std::vector<ExtraFlag> kFlags = {
    {"prompt_tokens", "tokens in the cache before the first measured one", "128", false},
    {"measured", "tokens measured of each row", "256", false},
    {"way",
     "automatic (on a GPU a graph, under bf16 of one kernel for the whole model), launched (a "
     "kernel for each part of a block, one by one) or composed (of the model's own ops)",
     "automatic", false},
};

const std::vector<std::string> kLists = {"size", "vocab", "precision", "batch", "way"};

DecodeBenchOptions options_of(const ParsedArgs& parsed) {
  if (!parsed.positional.empty()) {
    throw UsageError(cat("bench decode: found '", parsed.positional[0], "', expected flags alone"));
  }
  DecodeBenchOptions options;
  options.batch = parsed.config.train.batch;
  options.prompt = count_of(parsed, "prompt_tokens", 1);
  options.tokens = iterations_of(parsed, "measured", 1);
  options.temperature = parsed.config.sample.temperature;
  return options;
}

Config decode_config() {
  Config config = bench_config();
  config.train.batch = 1;
  return config;
}

int run_bench_decode(const Arguments& args) {
  std::set<std::string> varying;
  std::vector<ParsedArgs> runs;  // all are read before the first is measured
  for (const Arguments& one : expand_lists(args, kLists, varying)) {
    runs.push_back(parse_args(one, with_format_flags(kFlags), decode_config(), apply_model_from));
  }
  const ParsedArgs& first = runs.front();
  const Table table(decode_columns(), format_of(first));
  for (size_t i = 0; i < runs.size(); ++i) {
    const Config& config = runs[i].config;
    const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
    const ContextScope scope(*context);
    DecodeBenchRow row = bench_decode(config.model.size, config.model, config.compute,
                                      runs[i].extra.at("way"), options_of(runs[i]));
    // More than any cache holds.
    row.read_tb_per_second =
        measure_read(context->device().is_cuda() ? int64_t{1} << 30 : int64_t{1} << 27) / 1e12;
    if (i == 0) print_now(table.head());
    print_now(table.row(decode_cells(row, peer_name()),
                        row.out_of_memory.empty() ? nullptr : &kOutOfMemory));
  }
  return 0;
}

}  // namespace

const Command kBenchDecodeCommand{"bench decode",
                                  "generation of tokens against reading the weights",
                                  kUsage,
                                  run_bench_decode,
                                  with_format_flags(kFlags),
                                  {"[model]", "[compute]", "batch", "seed", "temperature"}};

}  // namespace quern
