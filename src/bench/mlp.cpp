#include "bench/mlp.h"

#include <array>

#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "nn/activations.h"
#include "nn/linear.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr double kLearningRate = 1e-4;
constexpr int64_t kMostExtent = int64_t{1} << 24;  // its square fits 64 bits
constexpr std::array kDimensions{MlpDimension::layers, MlpDimension::width, MlpDimension::batch,
                                 MlpDimension::steps};
constexpr size_t kParts = 3;  // forward, backward, optimizer

// Indexed by MlpDimension.
constexpr std::array<int64_t MlpShape::*, 5> kExtents{nullptr, &MlpShape::layers, &MlpShape::width,
                                                      &MlpShape::batch, &MlpShape::steps};

int64_t& extent(MlpShape& shape, MlpDimension dimension) {
  QUERN_CHECK(dimension != MlpDimension::none, "bench mlp: the base has no scaled dimension");
  return shape.*kExtents.at(static_cast<size_t>(dimension));
}

void check_extent(MlpShape shape, MlpDimension dimension, int64_t scale) {
  const int64_t value = extent(shape, dimension);
  if (value <= kMostExtent / scale) return;
  throw UsageError(cat("--", name_of(dimension), " is ", value, ", and scaled by ", scale,
                       " more than ", kMostExtent));
}

void check_options(const MlpBenchOptions& options) {
  for (const MlpDimension dimension : kDimensions) check_extent(options.base, dimension, 1);
  for (const MlpDimension dimension : options.dimensions) {
    for (const int64_t scale : options.scales) check_extent(options.base, dimension, scale);
  }
}

void measure(MlpRow& row, const MlpBenchOptions& options) {
  MlpRunner runner(row.one.shape, row.precision, options.optimizer);
  const auto steps = static_cast<size_t>(row.one.shape.steps);
  const std::vector<double> times = time_rounds(options.warmup, options.trials, steps * kParts,
                                                [&](const Mark& mark) { runner.run(mark); });
  row.total = summarize(sums_of(times, steps * kParts));
  Summary* const parts[kParts] = {&row.forward, &row.backward, &row.optimizer};
  for (size_t i = 0; i < kParts; ++i) {
    *parts[i] = summarize(sums_of(part_of(times, kParts, i), steps));
  }
}

}  // namespace

MlpRunner::MlpRunner(const MlpShape& shape, Precision precision, bool optimizer)
    : steps_(shape.steps),
      x_(normal({shape.batch, shape.width}, 0.0, 1.0, operand_type(precision))) {
  for (int64_t i = 0; i < shape.layers; ++i) {
    model_.append<Linear>(shape.width, shape.width);
    model_.append<GELU>();
  }
  arena_.emplace(model_, ParameterArena::Options{precision});
  if (!optimizer) return;
  optimizer_.emplace(*arena_, AdamWOptions{});
  optimizer_->set_learning_rate(kLearningRate);
}

void MlpRunner::run(const Mark& mark) {
  for (int64_t i = 0; i < steps_; ++i) {
    arena_->zero_grad();
    Variable y;
    {
      const RangeScope range(RangeKind::phase, "forward");
      y = mean(model_(x_));
    }
    mark();
    {
      const RangeScope range(RangeKind::phase, "backward");
      backward(y);
    }
    mark();
    if (optimizer_) optimizer_->step();
    mark();
  }
}

double MlpShape::flops() const {
  const double product =
      2.0 * static_cast<double>(batch) * static_cast<double>(width) * static_cast<double>(width);
  return product * static_cast<double>(3 * layers - 1) * static_cast<double>(steps);
}

std::vector<MlpCase> mlp_cases(const MlpBenchOptions& options) {
  std::vector<MlpCase> cases{{MlpDimension::none, 1, options.base}};
  for (const MlpDimension dimension : options.dimensions) {
    for (const int64_t scale : options.scales) {
      cases.push_back({dimension, scale, options.base});
      extent(cases.back().shape, dimension) *= scale;
    }
  }
  return cases;
}

std::vector<MlpRow> bench_mlp(const MlpBenchOptions& options, Precision precision,
                              const std::function<void(const MlpRow&)>& on_row) {
  check_options(options);
  const MatmulMathScope math(precision);
  std::vector<MlpRow> rows;
  for (const MlpCase& one : mlp_cases(options)) {
    MlpRow row;
    row.one = one;
    row.precision = precision;
    row.out_of_memory = out_of_memory_in([&] { measure(row, options); });
    row.base_ms = rows.empty() ? row.total.median : rows.front().total.median;
    rows.push_back(row);
    if (on_row) on_row(rows.back());
  }
  return rows;
}

TableRow table_row(const MlpRow& row, bool optimizer, bool on_gpu) {
  const MlpShape& s = row.one.shape;
  Fields figures{{{"forward ms", "forward_ms", 3, 10}, row.forward.median},
                 {{"backward ms", "backward_ms", 3, 11}, row.backward.median}};
  if (optimizer) figures.push_back({{"optimizer ms", "optimizer_ms", 3, 12}, row.optimizer.median});
  const double rate = s.flops() / (row.total.median / 1e3) / (on_gpu ? 1e12 : 1e9);
  const char *unit = on_gpu ? "TFLOP/s" : "GFLOP/s", *key = on_gpu ? "tflops" : "gflops";
  // A base that ran out of memory makes the ratio infinite, which a table leaves out.
  figures.insert(figures.end(), {{{"total ms", "total_ms", 3, 8}, row.total.median},
                                 {{"std ms", "std_ms", 3, 7, Align::right, 2}, row.total.std},
                                 {{"of base", "ratio", 2, 7}, row.total.median / row.base_ms},
                                 {{unit, key, 2, 7, Align::right, 1}, rate}});
  return {{{{"precision", "precision", 0, 9, Align::left}, name_of(row.precision)},
           {{"scaled", "scaled", 0, 6, Align::left}, name_of(row.one.scaled)},
           {{"by", "scale", 0, 2}, row.one.scale},
           {{"layers", "layers", 0, 6}, s.layers},
           {{"width", "width", 0, 5}, s.width},
           {{"batch", "batch", 0, 5}, s.batch},
           {{"steps", "steps", 0, 5}, s.steps}},
          figures,
          row.out_of_memory};
}

}  // namespace quern
