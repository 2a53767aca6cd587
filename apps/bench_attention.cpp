// quern bench attention: times attention alone.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "bench/attention.h"
#include "bench/precision_scope.h"
#include "bench_flags.h"
#include "commands.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage = R"(Usage: quern bench attention [--FLAG VALUE ...]

Times forward and backward of attention on random inputs, each shape in each
precision and variant. saved: memory in use between forward and backward; peak:
the most in use; both count q, k, v, the output and its gradient. A shape that
does not fit is a row that says so. On the CPU the grids are small: T 128, 256,
512.
)";

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
    {"tokens", "tokens a launch in the model grid: batch = tokens / T (default 16384, CPU 512)", "",
     false},
    {"warmup", "iterations before those measured (default 3, CPU 1)", "", false},
    {"steps", "iterations measured, of which the median is printed (default 20, CPU 5)", "", false},
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
  options.precisions = choices_of(parsed, "precision",
                                  std::vector{Precision::bf16, Precision::tf32, Precision::fp32});
  for (const std::string& word : words_of(parsed, "causal", {"true", "false"})) {
    options.causal.push_back(word == "true");
  }
  options.dims = counts_of(parsed, "dims", 1);
  options.lengths = counts_of(parsed, "lengths", 1);
  const auto given = [&](const char* flag) { return !parsed.extra.at(flag).empty(); };
  options.tokens = given("tokens") ? count_of(parsed, "tokens", 1) : 0;
  options.warmup = given("warmup") ? iterations_of(parsed, "warmup", 1) : 0;
  options.steps = given("steps") ? iterations_of(parsed, "steps", 1) : 0;
  if (options.grids.empty()) throw UsageError("--grid is empty, expected model or course");
  if (options.precisions.empty()) {
    throw UsageError("--precision is empty, expected bf16, tf32 or fp32");
  }
  return options;
}

// What was not given.
void fill_defaults(AttentionBenchOptions& options, bool on_gpu) {
  options.small = !on_gpu;
  if (options.tokens == 0) options.tokens = on_gpu ? 16384 : 512;
  if (options.warmup == 0) options.warmup = on_gpu ? 3 : 1;
  if (options.steps == 0) options.steps = on_gpu ? 20 : 5;
}

int run_bench_attention(const Arguments& args) {
  const std::vector<ExtraFlag> flags = with_format_flags(kFlags);
  const ParsedArgs parsed = parse_args(args, flags);
  check_arguments(parsed, "bench attention");
  AttentionBenchOptions options = options_of(parsed);
  const Table table = attention_table(format_of(parsed));
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  fill_defaults(options, context->device().is_cuda());

  const std::string peer = peer_name();
  bool first = true;
  bench_attention(options, [&](const AttentionRow& row) {
    print_now((first ? table.head() : "") + attention_line(table, row, peer));
    first = false;
  });
  return 0;
}

}  // namespace

const Command kBenchAttentionCommand{"bench attention",
                                     "attention, naive and flash, over two grids of shapes",
                                     kUsage,
                                     run_bench_attention,
                                     with_format_flags(kFlags),
                                     kContextKeys};

}  // namespace quern
