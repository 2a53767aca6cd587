// quern bench dtypes: which tensor has which dtype under which precision.
#include "bench/dtypes.h"

#include <fmt/format.h>

#include "bench_flags.h"
#include "bench_precision.h"
#include "commands.h"
#include "run/load_model.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage = R"(Usage: quern bench dtypes [--FLAG VALUE ...]

Runs a forward and a backward under each precision and prints the dtype of every
parameter, activation, logit, loss and gradient. toy: Linear, ReLU, LayerNorm,
Linear; lm: a TransformerLM of two blocks.
)";

const std::vector<ExtraFlag> kFlags = with_format_flags({
    {"model", "some of toy and lm", "toy,lm", false},
    {"precision", "some of fp32, tf32 and bf16", "fp32,tf32,bf16", false},
    {"kernels", "of lm: fused or naive, which is composed of small ops", "fused", false},
});

int run_bench_dtypes(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags, {}, apply_model_from);
  check_arguments(parsed, "bench dtypes");
  const std::vector<std::string> models = words_of(parsed, "model", {"toy", "lm"});
  const std::vector<Precision> precisions = precisions_of(parsed);
  const std::vector<std::string> kernels = words_of(parsed, "kernels", {"fused", "naive"});
  if (kernels.size() != 1) {
    throw UsageError(cat("--kernels has ", kernels.size(), " words, expected fused or naive"));
  }
  const Table table(dtype_columns(precisions), format_of(parsed));
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);

  print_now(table.head());
  for (const std::string& model : models) {
    const auto rows = bench_dtypes(model == "toy" ? DtypeModel::toy : DtypeModel::lm, precisions,
                                   kernels[0] == "fused" ? KernelKind::fused : KernelKind::naive);
    for (const DtypeRow& row : rows) print_now(table.row(dtype_cells(row, peer_name())));
  }
  print_note(table, dtype_lesson());
  return 0;
}

}  // namespace

const Command kBenchDtypesCommand{"bench dtypes", "dtype of each tensor under each precision",
                                  kUsage,         run_bench_dtypes,
                                  kFlags,         kContextKeys};

}  // namespace quern
