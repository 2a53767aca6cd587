// The benchmarks of single parts: attention, the memory-bound kernels, matrix products, a
// multilayer perceptron, one sum, and the dtypes of a step.
#include <fmt/format.h>

#include "bench/accumulate.h"
#include "bench/attention.h"
#include "bench/dtypes.h"
#include "bench/kernels.h"
#include "bench/matmul.h"
#include "bench/mlp.h"
#include "bench/precision_scope.h"
#include "bench_commands.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

template <>
inline constexpr std::array kNamesOf<KernelKind>{"naive", "fused"};

namespace {

const std::vector kPrecisions{Precision::fp32, Precision::tf32, Precision::bf16};

bool on_gpu() {
  return Context::current().device().is_cuda();
}

// 0 if the flag, which has no default, is not given.
int64_t count_or_zero(const ParsedArgs& parsed, const char* flag) {
  return parsed.extra.at(flag).empty() ? 0 : iterations_of(parsed, flag, 1);
}

BenchJob prepare_attention(const BenchRun& run) {
  const ParsedArgs& parsed = run.parsed;
  AttentionBenchOptions options;
  options.grids = choices_of<AttentionGrid>(parsed, "grid");
  options.variants = choices_of<AttentionVariant>(parsed, "variant");
  options.precisions = choices_of(parsed, "precision",
                                  std::vector{Precision::bf16, Precision::tf32, Precision::fp32});
  for (const std::string& word : words_of(parsed, "causal", {"true", "false"})) {
    options.causal.push_back(word == "true");
  }
  options.dims = counts_of(parsed, "dims", 1);
  options.lengths = counts_of(parsed, "lengths", 1);
  for (const std::vector<int64_t>& s : shapes_of(parsed, "BxHxHkxTxD")) {
    if (s[1] % s[2] != 0) {
      throw UsageError(cat("--shapes has ", s[1], " query heads and ", s[2],
                           " key and value heads, which do not divide them"));
    }
    options.shapes.push_back({s[0], s[1], s[3], s[4], false, s[2]});
  }
  for (const char* flag : {"grid", "dims", "lengths", "tokens"}) {
    if (!options.shapes.empty() && parsed.extra_given.contains(flag)) {
      throw UsageError(cat("--", flag, " has no meaning beside --shapes"));
    }
  }
  options.tokens = parsed.extra.at("tokens").empty() ? 0 : count_of(parsed, "tokens", 1);
  options.warmup = count_or_zero(parsed, "warmup");
  options.steps = count_or_zero(parsed, "steps");
  return [options](Table& table) mutable {
    const bool gpu = on_gpu();
    options.small = !gpu;
    if (options.tokens == 0) options.tokens = gpu ? 16384 : 512;
    if (options.warmup == 0) options.warmup = gpu ? 3 : 1;
    if (options.steps == 0) options.steps = gpu ? 20 : 5;
    bench_attention(options, [&](const AttentionRow& row) { print_row(table, row); });
  };
}

BenchJob prepare_kernels(const BenchRun& run) {
  KernelBenchOptions options;
  options.kernels = words_of(run.parsed, "kernel", kernel_names());
  options.variants = words_of(run.parsed, "variant", {"naive", "online", "fused"});
  options.warmup = iterations_of(run.parsed, "warmup", 1);
  options.steps = iterations_of(run.parsed, "steps", 1);
  if (!run.parsed.extra.at("rows").empty()) options.rows = count_of(run.parsed, "rows", 1);
  return [options](Table& table) mutable {
    if (options.rows == 0 && !on_gpu()) options.rows = kCpuRows;
    bench_kernels(options, [&](const KernelRow& row) { print_row(table, row); });
  };
}

std::vector<MatmulShape> matmul_shapes_of(const ParsedArgs& parsed) {
  std::vector<MatmulShape> shapes;
  for (const int64_t n : counts_of(parsed, "sizes", 1, kMostExtent)) shapes.push_back({n, n, n});
  for (const std::vector<int64_t>& s : shapes_of(parsed, "MxNxK")) {
    shapes.push_back({s[0], s[1], s[2]});
  }
  return shapes;
}

BenchJob prepare_matmul(const BenchRun& run) {
  std::vector<MatmulShape> shapes = matmul_shapes_of(run.parsed);
  std::vector<Precision> precisions = choices_of<Precision>(run.parsed, "precision");
  const MatmulBenchOptions options{iterations_of(run.parsed, "warmup", 1),
                                   iterations_of(run.parsed, "steps", 1)};
  return [=](Table& table) mutable {
    if (shapes.empty()) shapes = default_matmul_shapes();
    if (precisions.empty()) precisions = default_matmul_precisions();
    for (const Precision precision : precisions) {
      check_precision(precision, Context::current().device(), Context::current().traits());
      for (const MatmulShape& shape : shapes) {
        print_row(table, bench_matmul(shape, precision, options), on_gpu());
      }
    }
  };
}

BenchJob prepare_mlp(const BenchRun& run) {
  const ParsedArgs& parsed = run.parsed;
  MlpBenchOptions options;
  options.base = {count_of(parsed, "layers", 1), count_of(parsed, "width", 1),
                  count_of(parsed, "batch", 1), iterations_of(parsed, "steps", 1)};
  options.dimensions = choices_of(parsed, "scale", options.dimensions);
  options.scales = counts_of(parsed, "scales", 1);
  options.optimizer = parsed.on("optimizer");
  options.warmup = iterations_of(parsed, "warmup", 1);
  options.trials = iterations_of(parsed, "trials", 1);
  const std::vector<Precision> precisions = choices_of(parsed, "precision", kPrecisions);
  return [=](Table& table) {
    for (const Precision precision : precisions) {
      bench_mlp(options, precision,
                [&](const MlpRow& row) { print_row(table, row, options.optimizer, on_gpu()); });
    }
  };
}

// Prints below a table for people; programs get only the rows.
void print_note(const Table& table, const std::string& note) {
  if (table.for_people()) print_now("\n" + note);
}

BenchJob prepare_accumulate(const BenchRun& run) {
  return [count = count_of(run.parsed, "count", 1)](Table& table) {
    for (const AccumulateCase& one : accumulate_cases()) {
      print_row(table, accumulate_terms(one, count));
    }
    print_note(table, accumulate_lesson());
  };
}

BenchJob prepare_dtypes(const BenchRun& run) {
  const auto models = choices_of<DtypeModel>(run.parsed, "model");
  const std::vector<Precision> precisions = choices_of(run.parsed, "precision", kPrecisions);
  const auto kind = choice_of<KernelKind>(run.parsed, "kernels");
  return [=](Table& table) {
    for (const DtypeModel model : models) {
      for (const DtypeRow& row : bench_dtypes(model, precisions, kind)) {
        print_row(table, row, precisions);
      }
    }
    print_note(table, dtype_lesson());
  };
}

}  // namespace

const Command kBenchAttentionCommand{
    "bench attention",
    "attention, naive and flash, over two grids of shapes",
    R"(Usage: quern bench attention [--FLAG VALUE ...]

Times forward and backward of attention on random inputs, each shape in each
precision and variant. saved: memory in use between forward and backward; peak:
maximum in use; both count q, k, v, the output and its gradient. A shape that
runs out of memory gives a row and not an error. On the CPU the grids are
small: T 128, 256, 512.
)",
    runs_of({kBenchAttentionCommand,
             prepare_attention,
             {"warmup"},
             {{"ctx", "lengths"}, {"batch", "tokens"}, {"attention", "variant"}}}),
    bench_flags(
        {{"grid", "some of model (2048 wide) and course (batch 8, one head)", "model,course"},
         {"precision", "some of bf16, tf32 (of FP32 tensors) and fp32", "bf16,fp32"},
         {"variant",
          "some of naive, naive_graph (captured, GPU), flash and portable (flash without the "
          "kernels of one GPU architecture); by default all but portable",
          ""},
         {"dims", "head dimensions D, instead of the grid's", ""},
         {"lengths", "sequence lengths T, instead of the grid's", ""},
         {"shapes",
          "other shapes instead of the grids', as BxHxHkxTxD with Hk key and value heads: "
          "1x32x8x4096x128,2x1x1x1000x64",
          ""},
         {"causal", "some of true and false, instead of the grid's", ""},
         {"tokens",
          "tokens a launch in the model grid: batch = tokens / T (default 16384, CPU 512)", ""},
         {"warmup", "iterations before those measured (default 3, CPU 1)", ""},
         {"steps", "measured iterations; the table shows their median (default 20, CPU 5)", ""}}),
    kContextKeys};

const Command kBenchKernelsCommand{
    "bench kernels",
    "memory-bound kernels against the bandwidth of a copy",
    R"(Usage: quern bench kernels [--FLAG VALUE ...]

Times each memory-bound kernel, fused and as its naive twin of small ops. The
first rows are two upper bounds: a copy and matrix products. MB: the bytes that
must move once, each input read and each output written; TB/s and the share of
the copy's bandwidth follow from them. The other columns count the bytes and
FLOPs of a variant's actual kernels; % roof is the shortest time that the bounds
allow, over the measured time. A case that runs out of memory gives a row and
not an error.
)",
    runs_of({kBenchKernelsCommand,
             prepare_kernels,
             {"warmup"},
             {{"kernels", "kernel"}, {"batch", "rows"}}}),
    bench_flags(
        {{"kernel", "kernels to time; all by default", "", false, kernel_names},
         {"variant", "some of naive, online (softmax in two passes) and fused",
          "naive,online,fused"},
         {"rows", "rows of every tensor; by default 16384 or 32768 on a GPU and 256 on the CPU",
          ""},
         {"warmup", "calls before those measured, at least; more until 50 ms have passed", "5"},
         {"steps", "measured calls; the table shows their median", "20"}}),
    kContextKeys};

const Command kBenchMatmulCommand{
    "bench matmul",
    "matrix products over a sweep of sizes",
    R"(Usage: quern bench matmul [--FLAG VALUE ...]

Times the product of an M x K and a K x N matrix in each precision, one call
after another. The rate counts 2 M N K operations. A product that runs out of
memory gives a row and not an error.
)",
    runs_of({kBenchMatmulCommand, prepare_matmul, {"warmup"}, {{"size", "sizes"}}}),
    bench_flags(
        {{"sizes",
          "square products: 256,512; by default 256 to 16384 on a GPU, 64 to 1024 on the CPU", ""},
         {"shapes", "other products, as MxNxK: 4096x4096x64,512x32000x2048", ""},
         {"precision",
          "some of fp32, tf32, bf16 and fp8 (operands in FP8 already); by default the first three, "
          "without tf32 (fp32 there) on the CPU",
          ""},
         {"warmup", "calls before those measured", "3"},
         {"steps", "measured calls; the table shows their median", "20"}}),
    kContextKeys};

const Command kBenchMlpCommand{
    "bench mlp",
    "a multilayer perceptron, scaled along each dimension",
    R"(Usage: quern bench mlp [--FLAG VALUE ...]

Times forward and backward of a multilayer perceptron, one Linear and one GELU a
layer: first the base, then with layers, width, batch and steps scaled one at a
time. A case that runs out of memory gives a row and not an error.
)",
    runs_of({kBenchMlpCommand, prepare_mlp, {"warmup"}, {{"d_model", "width"}}}),
    bench_flags({{"layers", "layers of the base", "4"},
                 {"width", "inputs and outputs of each layer of the base", "256"},
                 {"batch", "rows of the base's input", "256"},
                 {"steps", "forwards and backwards in one run of the base", "2"},
                 {"scale", "some of layers, width, batch and steps", "layers,width,batch,steps"},
                 {"scales", "factors for each of them", "2,3,4,5"},
                 {"precision", "some of fp32, tf32 and bf16", "fp32"},
                 {"optimizer", "AdamW after each backward", "", true},
                 {"warmup", "runs before those measured", "2"},
                 {"trials", "measured runs; the table shows their median", "10"}}),
    kContextKeys};

const Command kBenchAccumulateCommand{"bench accumulate",
                                      "one sum in FP32, FP16, BF16 and mixed precision",
                                      R"(Usage: quern bench accumulate [--FLAG VALUE ...]

Adds 0.01 to a sum a thousand times, one addition after another: in FP32, FP16
and BF16, and in FP32 with 16-bit terms. Shows why sums accumulate in FP32.
)",
                                      runs_of({kBenchAccumulateCommand, prepare_accumulate}),
                                      bench_flags({{"count", "additions", "1000"}}),
                                      kContextKeys};

const Command kBenchDtypesCommand{
    "bench dtypes",
    "dtype of each tensor under each precision",
    R"(Usage: quern bench dtypes [--FLAG VALUE ...]

Runs a forward and a backward under each precision and prints the dtype of every
parameter, activation, logit, loss and gradient. toy: Linear, ReLU, LayerNorm,
Linear; lm: a TransformerLM of two blocks.
)",
    runs_of({kBenchDtypesCommand, prepare_dtypes}),
    bench_flags({{"model", "some of toy and lm", "toy,lm"},
                 {"precision", "some of fp32, tf32 and bf16", "fp32,tf32,bf16"},
                 {"kernels", "of lm: fused or naive, which is composed of small ops", "fused"}}),
    kContextKeys};

}  // namespace quern
