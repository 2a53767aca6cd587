// `quern bench matmul`: a matrix product alone, over a sweep of sizes, in each precision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "bench/table.h"
#include "nn/options.h"

namespace quern {

// (M, K) by (K, N).
struct MatmulShape {
  int64_t M = 0, N = 0, K = 0;

  double flops() const;  // 2 M N K: a multiplication and an addition each
  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

// The default sweep on the current Context's device. The CPU leaves out tf32, which equals fp32
// there.
std::vector<MatmulShape> default_matmul_shapes();
std::vector<Precision> default_matmul_precisions();

struct MatmulBenchOptions {
  int64_t warmup = 3;  // unmeasured calls
  int64_t steps = 20;  // measured calls
};

struct MatmulRow {
  MatmulShape shape;
  Precision precision = Precision::fp32;
  Summary time;               // milliseconds a call
  std::string out_of_memory;  // the allocator's message; then there are no figures

  double flops_per_second() const;  // of the median; 0 when out of memory
};

// Times back-to-back products of random matrices, called as a program would, on the current
// Context's device. Out of memory gives a row.
MatmulRow bench_matmul(const MatmulShape& shape, Precision precision,
                       const MatmulBenchOptions& options);

// TFLOP/s on a GPU, GFLOP/s on the CPU.
TableRow table_row(const MatmulRow& row, bool on_gpu);

}  // namespace quern
