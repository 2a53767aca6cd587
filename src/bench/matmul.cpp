#include "bench/matmul.h"

#include <charconv>

#include "autograd/ops/matmul.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "tensor/factory.h"

namespace quern {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw UsageError(cat("--shapes has '", text, "', expected MxNxK, three integers from 1 to ",
                       kMostMatmulExtent, ": 512x512x64"));
}

void check_options(const MatmulBenchOptions& options) {
  const auto check = [](const char* flag, int64_t value) {
    if (value < 1) throw UsageError(cat("--", flag, " is ", value, ", expected at least 1"));
  };
  check("warmup", options.warmup);
  check("steps", options.steps);
}

std::vector<double> time_calls(const MatmulRow& row, const MatmulBenchOptions& options) {
  const NoGrad no_grad;
  const MatmulShape& s = row.shape;
  const DType dtype = operand_type(row.precision);
  const Tensor a = normal({s.M, s.K}, 0.0, 1.0, dtype), b = normal({s.K, s.N}, 0.0, 1.0, dtype);
  for (int64_t i = 0; i < options.warmup; ++i) matmul(a, b);
  Context::current().synchronize();
  Timeline timeline(1 + static_cast<size_t>(options.steps));
  timeline.mark();
  for (int64_t i = 0; i < options.steps; ++i) {
    matmul(a, b);
    timeline.mark();
  }
  return timeline.intervals();
}

}  // namespace

double MatmulShape::flops() const {
  return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
}

double MatmulRow::flops_per_second() const {
  return time.median > 0.0 ? shape.flops() / (time.median / 1e3) : 0.0;
}

MatmulShape parse_matmul_shape(const std::string& text) {
  MatmulShape shape;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int64_t* extent : {&shape.M, &shape.N, &shape.K}) {
    if (extent != &shape.M && (at == end || *at++ != 'x')) refuse(text);
    const auto [next, error] = std::from_chars(at, end, *extent);
    if (error != std::errc() || *extent < 1 || *extent > kMostMatmulExtent) refuse(text);
    at = next;
  }
  if (at != end) refuse(text);
  return shape;
}

std::vector<MatmulShape> default_matmul_shapes() {
  const bool on_gpu = Context::current().device().is_cuda();
  std::vector<MatmulShape> shapes;
  for (int64_t n = on_gpu ? 256 : 64; n <= (on_gpu ? 16384 : 1024); n *= 2) {
    shapes.push_back({n, n, n});
  }
  return shapes;
}

std::vector<Precision> default_matmul_precisions() {
  if (!Context::current().device().is_cuda()) return {Precision::fp32, Precision::bf16};
  return {Precision::fp32, Precision::tf32, Precision::bf16};
}

MatmulRow bench_matmul(const MatmulShape& shape, Precision precision,
                       const MatmulBenchOptions& options) {
  check_options(options);
  const MatmulMathScope math(precision);
  const Context& context = Context::current();
  context.allocator(context.device())->release_cached();
  MatmulRow row;
  row.shape = shape;
  row.precision = precision;
  try {
    row.time = summarize(time_calls(row, options));
  } catch (const OutOfMemory& error) {
    row.out_of_memory = error.what();
  }
  return row;
}

std::vector<Column> matmul_columns(bool on_gpu) {
  return {{"", "peer"},
          {"precision", "precision", 0, 9, Align::left},
          {"M", "M", 0, 6},
          {"N", "N", 0, 6},
          {"K", "K", 0, 6},
          {"ms", "ms", 4, 10},
          {"std ms", "std_ms", 4, 9},
          {on_gpu ? "TFLOP/s" : "GFLOP/s", on_gpu ? "tflops" : "gflops", on_gpu ? 2 : 1, 9}};
}

std::vector<Cell> matmul_cells(const MatmulRow& row, bool on_gpu, const std::string& peer) {
  const MatmulShape& s = row.shape;
  std::vector<Cell> cells{peer, std::string(name_of(row.precision)), s.M, s.N, s.K};
  if (!row.out_of_memory.empty()) return cells;
  cells.insert(cells.end(),
               {row.time.median, row.time.std, row.flops_per_second() / (on_gpu ? 1e12 : 1e9)});
  return cells;
}

}  // namespace quern
