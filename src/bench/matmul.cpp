#include "bench/matmul.h"

#include "autograd/ops/fp8.h"
#include "autograd/ops/matmul.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// The product alone, as that of an activation and a weight: the operands are in FP8 already.
std::vector<double> time_fp8(const MatmulShape& s, const MatmulBenchOptions& options) {
  using detail::Fp8Operand;
  const auto operand = [](int64_t rows, int64_t depth, Fp8Operand kind) {
    const Tensor x = normal({rows, depth}, 0.0, 1.0, DType::bf16);
    return detail::quantize(x, kind, {.transpose = false}).matrix;
  };
  const auto a = operand(s.M, s.K, Fp8Operand::activation);
  const auto b = operand(s.N, s.K, Fp8Operand::weight);
  const Tensor d = Tensor::empty({s.M, s.N}, DType::bf16);
  return time_rounds(options.warmup, options.steps, 1, [&](const Mark& mark) {
    detail::fp8_product(d, a, b);
    mark();
  });
}

std::vector<double> time_calls(const MatmulRow& row, const MatmulBenchOptions& options) {
  const NoGrad no_grad;
  const MatmulShape& s = row.shape;
  if (row.precision == Precision::fp8) return time_fp8(s, options);
  const DType dtype = operand_type(row.precision);
  const Tensor a = normal({s.M, s.K}, 0.0, 1.0, dtype), b = normal({s.K, s.N}, 0.0, 1.0, dtype);
  return time_rounds(options.warmup, options.steps, 1, [&](const Mark& mark) {
    matmul(a, b);
    mark();
  });
}

}  // namespace

double MatmulShape::flops() const {
  return 2.0 * static_cast<double>(M) * static_cast<double>(N) * static_cast<double>(K);
}

double MatmulRow::flops_per_second() const {
  return time.median > 0.0 ? shape.flops() / (time.median / 1e3) : 0.0;
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
  const MatmulMathScope math(precision);
  MatmulRow row;
  row.shape = shape;
  row.precision = precision;
  row.out_of_memory = out_of_memory_in([&] { row.time = summarize(time_calls(row, options)); });
  return row;
}

TableRow table_row(const MatmulRow& row, bool on_gpu) {
  const MatmulShape& s = row.shape;
  const double rate = row.flops_per_second() / (on_gpu ? 1e12 : 1e9);
  return {{{{"precision", "precision", 0, 9, Align::left}, name_of(row.precision)},
           {{"M", "M", 0, 6}, s.M},
           {{"N", "N", 0, 6}, s.N},
           {{"K", "K", 0, 6}, s.K}},
          {{{"ms", "ms", 4, 10}, row.time.median},
           {{"std ms", "std_ms", 4, 9}, row.time.std},
           {on_gpu ? Column{"TFLOP/s", "tflops", 2, 9} : Column{"GFLOP/s", "gflops", 1, 9}, rate}},
          row.out_of_memory};
}

}  // namespace quern
