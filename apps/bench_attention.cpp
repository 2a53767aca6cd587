// quern bench attention: times attention alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "base/build_info.h"
#include "bench/attention.h"
#include "bench_commands.h"
#include "bench_flags.h"
#include "tensor/context.h"
#include "train/setup.h"

namespace quern {

namespace {

constexpr const char* kUsage =
    "Usage: quern bench attention [--FLAG VALUE ...]\n\n"
    "Times the forward and the backward of attention on random inputs, each shape in each\n"
    "precision and variant. saved: memory in use between forward and backward; peak: the most in\n"
    "use; both count q, k, v, the output and its gradient. What does not fit is a row that says "
    "so.\n"
    "The grids are a GPU's; on the CPU give --lengths and --tokens of hundreds.\n";

const std::vector<ExtraFlag> kFlags = {
    {"grid", "some of model (2048 wide) and course (batch 8, one head)", "model,course", false},
    {"precision", "some of bf16, tf32 (of FP32 tensors) and fp32", "bf16,fp32", false},
    {"variant",
     "some of naive, naive_graph (captured, GPU), flash and portable (flash without the kernels of "
     "one GPU architecture); by default all but portable",
     "", false},
    {"dims", "head dimensions D, instead of the grid's", "", false},
    {"lengths", "sequence lengths T, instead of the grid's", "", false},
    {"causal", "some of true and false, instead of the grid's", "", false},
    {"tokens", "tokens a launch in the model grid: batch = tokens / T", "16384", false},
    {"warmup", "iterations before those measured", "3", false},
    {"steps", "iterations measured, of which the median is printed", "20", false},
    {"json", "print a line of JSON a row instead of the table", "", true},
};

// The values whose names the flag lists.
template <class E>
std::vector<E> choices_of(const ParsedArgs& parsed, const std::string& flag,
                          const std::vector<E>& all) {
  std::vector<std::string> names(all.size());
  std::transform(all.begin(), all.end(), names.begin(), [](E value) { return name_of(value); });
  std::vector<E> chosen;
  for (const std::string& word : words_of(parsed, flag, names)) {
    const auto at = std::find(names.begin(), names.end(), word) - names.begin();
    chosen.push_back(all[static_cast<size_t>(at)]);
  }
  return chosen;
}

AttentionBenchOptions options_of(const ParsedArgs& parsed) {
  AttentionBenchOptions options;
  options.grids =
      choices_of(parsed, "grid", std::vector{AttentionGrid::model, AttentionGrid::course});
  options.variants = choices_of(parsed, "variant",
                                std::vector{AttentionVariant::naive, AttentionVariant::naive_graph,
                                            AttentionVariant::flash, AttentionVariant::portable});
  options.precisions.clear();
  const std::map<std::string, Precision> precisions{
      {"bf16", Precision::bf16}, {"tf32", Precision::tf32}, {"fp32", Precision::fp32}};
  for (const std::string& word : words_of(parsed, "precision", {"bf16", "tf32", "fp32"})) {
    options.precisions.push_back(precisions.at(word));
  }
  for (const std::string& word : words_of(parsed, "causal", {"true", "false"})) {
    options.causal.push_back(word == "true");
  }
  options.dims = counts_of(parsed, "dims", 1);
  options.lengths = counts_of(parsed, "lengths", 1);
  options.tokens = count_of(parsed, "tokens", 1);
  options.warmup = count_of(parsed, "warmup", 1);
  options.steps = count_of(parsed, "steps", 1);
  if (options.grids.empty()) throw UsageError("--grid is empty, expected model or course");
  if (options.precisions.empty()) {
    throw UsageError("--precision is empty, expected bf16, tf32 or fp32");
  }
  return options;
}

}  // namespace

int run_bench_attention(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  if (parsed.help) {
    fmt::print("{}\n{}", kUsage, help_without_model(kFlags));
    return 0;
  }
  check_arguments(parsed, "bench attention");
  const AttentionBenchOptions options = options_of(parsed);
  const bool json = parsed.extra.at("json") == "true";
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);

  const std::string peer = cat("quern-", build_info().version);
  bool first = true;
  bench_attention(options, [&](const AttentionRow& row) {
    if (first && !json) fmt::print("{}", attention_table_head());
    first = false;
    fmt::print("{}", json ? attention_json(row, peer) + "\n" : attention_table_line(row));
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace quern
