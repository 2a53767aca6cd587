// quern bench mlp: times a multilayer perceptron, scaled along one dimension after another.
#include "bench/mlp.h"

#include <fmt/format.h>

#include "bench_flags.h"
#include "bench_precision.h"
#include "commands.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage = R"(Usage: quern bench mlp [--FLAG VALUE ...]

Times forward and backward of a multilayer perceptron, one Linear and one GELU a
layer: first the base, then with layers, width, batch and steps scaled one at a
time. A case that does not fit is a row that says so.
)";

const std::vector<ExtraFlag> kFlags = with_format_flags({
    {"layers", "layers of the base", "4", false},
    {"width", "inputs and outputs of each layer of the base", "256", false},
    {"batch", "rows of the base's input", "256", false},
    {"steps", "forwards and backwards in one run of the base", "2", false},
    {"scale", "some of layers, width, batch and steps", "layers,width,batch,steps", false},
    {"scales", "what each is multiplied by", "2,3,4,5", false},
    {"precision", "some of fp32, tf32 and bf16", "fp32", false},
    {"optimizer", "AdamW after each backward", "", true},
    {"warmup", "runs before those measured", "2", false},
    {"trials", "runs measured, of which the median is printed", "10", false},
});

std::vector<MlpDimension> dimensions_of(const ParsedArgs& parsed) {
  std::vector<MlpDimension> dimensions;
  for (const std::string& word : words_of(parsed, "scale", {"layers", "width", "batch", "steps"})) {
    for (const MlpDimension dimension :
         {MlpDimension::layers, MlpDimension::width, MlpDimension::batch, MlpDimension::steps}) {
      if (word == name_of(dimension)) dimensions.push_back(dimension);
    }
  }
  return dimensions;
}

MlpBenchOptions options_of(const ParsedArgs& parsed) {
  MlpBenchOptions options;
  options.base = {count_of(parsed, "layers", 1), count_of(parsed, "width", 1),
                  count_of(parsed, "batch", 1), iterations_of(parsed, "steps", 1)};
  options.dimensions = dimensions_of(parsed);
  options.scales = counts_of(parsed, "scales", 1);
  options.optimizer = parsed.extra.at("optimizer") == "true";
  options.warmup = iterations_of(parsed, "warmup", 1);
  options.trials = iterations_of(parsed, "trials", 1);
  return options;
}

int run_bench_mlp(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  check_arguments(parsed, "bench mlp");
  const MlpBenchOptions options = options_of(parsed);
  const std::vector<Precision> precisions = precisions_of(parsed);
  const TableFormat format = format_of(parsed);
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);

  const bool on_gpu = context->device().is_cuda();
  const Table table(mlp_columns(options.optimizer, on_gpu), format);
  bool first = true;
  for (const Precision precision : precisions) {
    bench_mlp(options, precision, [&](const MlpRow& row) {
      if (first) print_now(table.head());
      first = false;
      print_now(table.row(mlp_cells(row, options.optimizer, on_gpu, peer_name()),
                          row.out_of_memory.empty() ? nullptr : &kOutOfMemory));
    });
  }
  return 0;
}

}  // namespace

const Command kBenchMlpCommand{"bench mlp", "a multilayer perceptron, scaled along each dimension",
                               kUsage,      run_bench_mlp,
                               kFlags,      kContextKeys};

}  // namespace quern
