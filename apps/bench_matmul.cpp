// quern bench matmul: times matrix products.
#include "bench/matmul.h"

#include <fmt/format.h>

#include <sstream>

#include "bench_flags.h"
#include "bench_precision.h"
#include "commands.h"
#include "run/make_context.h"
#include "tensor/context.h"

namespace quern {

namespace {

constexpr const char* kUsage = R"(Usage: quern bench matmul [--FLAG VALUE ...]

Times the product of an M x K and a K x N matrix in each precision, one call
after another. The rate counts 2 M N K operations. A product that does not fit
is a row that says so.
)";

const std::vector<ExtraFlag> kFlags = with_format_flags({
    {"sizes", "square products: 256,512; by default 256 to 16384 on a GPU, 64 to 1024 on the CPU",
     "", false},
    {"shapes", "other products, as MxNxK: 4096x4096x64,512x32000x2048", "", false},
    {"precision", "some of fp32, tf32 and bf16; by default all, but tf32 (fp32 there) on the CPU",
     "", false},
    {"warmup", "calls before those measured", "3", false},
    {"steps", "calls measured, of which the median is printed", "20", false},
});

std::vector<MatmulShape> shapes_of(const ParsedArgs& parsed) {
  std::vector<MatmulShape> shapes;
  for (const int64_t n : counts_of(parsed, "sizes", 1)) {
    if (n > kMostMatmulExtent) {
      throw UsageError(cat("--sizes is ", n, ", expected at most ", kMostMatmulExtent));
    }
    shapes.push_back({n, n, n});
  }
  std::istringstream words(parsed.extra.at("shapes"));
  for (std::string word; std::getline(words, word, ',');) {
    shapes.push_back(parse_matmul_shape(word));
  }
  return shapes;
}

int run_bench_matmul(const Arguments& args) {
  const ParsedArgs parsed = parse_args(args, kFlags);
  check_arguments(parsed, "bench matmul");
  std::vector<MatmulShape> shapes = shapes_of(parsed);
  std::vector<Precision> precisions;
  if (!parsed.extra.at("precision").empty()) precisions = precisions_of(parsed);
  const MatmulBenchOptions options{iterations_of(parsed, "warmup", 1),
                                   iterations_of(parsed, "steps", 1)};
  const TableFormat format = format_of(parsed);
  const Config& config = parsed.config;
  const auto context = make_context(config.compute, static_cast<uint64_t>(config.train.seed));
  const ContextScope scope(*context);
  if (shapes.empty()) shapes = default_matmul_shapes();
  if (precisions.empty()) precisions = default_matmul_precisions();

  const bool on_gpu = context->device().is_cuda();
  const Table table(matmul_columns(on_gpu), format);
  print_now(table.head());
  for (const Precision precision : precisions) {
    for (const MatmulShape& shape : shapes) {
      const MatmulRow row = bench_matmul(shape, precision, options);
      print_now(table.row(matmul_cells(row, on_gpu, peer_name()),
                          row.out_of_memory.empty() ? nullptr : &kOutOfMemory));
    }
  }
  return 0;
}

}  // namespace

const Command kBenchMatmulCommand{"bench matmul", "matrix products over a sweep of sizes",
                                  kUsage,         run_bench_matmul,
                                  kFlags,         kContextKeys};

}  // namespace quern
