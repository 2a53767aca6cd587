// `quern bench mlp`: forward and backward of a multilayer perceptron whose layers, width, batch and
// steps are scaled one by one. Shows how the time grows with each.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "bench/harness.h"
#include "bench/table.h"
#include "nn/options.h"
#include "nn/sequential.h"
#include "optim/adamw.h"

namespace quern {

// `layers` times Linear (width, width) and GELU on a batch of rows; a run is `steps` times forward,
// mean and backward.
struct MlpShape {
  int64_t layers = 4, width = 256, batch = 256, steps = 2;

  double flops() const;  // products of a run: 2 forward and 4 backward a weight and row,
                         // less the first layer's gradient of the input
  friend bool operator==(const MlpShape&, const MlpShape&) = default;
};

class MlpRunner {
 public:
  MlpRunner(const MlpShape& shape, Precision precision, bool optimizer);

  // Runs once; marks after each part of each step: forward, backward, optimizer.
  void run(const Mark& mark);

 private:
  int64_t steps_;
  Tensor x_;
  Sequential model_;
  std::optional<ParameterArena> arena_;
  std::optional<AdamW> optimizer_;
};

enum class MlpDimension { none, layers, width, batch, steps };  // none: the base itself
template <>
inline constexpr std::array kNamesOf<MlpDimension>{"base", "layers", "width", "batch", "steps"};

struct MlpCase {
  MlpDimension scaled = MlpDimension::none;
  int64_t scale = 1;
  MlpShape shape;
};

struct MlpBenchOptions {
  MlpShape base;
  std::vector<int64_t> scales{2, 3, 4, 5};
  std::vector<MlpDimension> dimensions{MlpDimension::layers, MlpDimension::width,
                                       MlpDimension::batch, MlpDimension::steps};
  bool optimizer = false;  // AdamW after each backward
  int64_t warmup = 2;      // unmeasured runs
  int64_t trials = 10;     // measured runs
};

// The base, then each dimension scaled by each factor, with the others as in the base.
std::vector<MlpCase> mlp_cases(const MlpBenchOptions& options);

struct MlpRow {
  MlpCase one;
  Precision precision = Precision::fp32;
  Summary total, forward, backward, optimizer;  // milliseconds a run, of all its steps
  double base_ms = 0.0;                         // total of the base, 0 when it ran out of memory
  std::string out_of_memory;                    // the allocator's message; then no figures
};

// Runs every case in one precision on the current Context's device, launched op by op. Calls
// `on_row` after each. Out of memory gives a row. Throws UsageError when an extent is too large.
std::vector<MlpRow> bench_mlp(const MlpBenchOptions& options, Precision precision,
                              const std::function<void(const MlpRow&)>& on_row = {});

TableRow table_row(const MlpRow& row, bool optimizer, bool on_gpu);

}  // namespace quern
