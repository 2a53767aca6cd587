#include "bench/mlp.h"

#include <array>
#include <optional>

#include "autograd/ops/reduce.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "nn/activations.h"
#include "nn/linear.h"
#include "nn/sequential.h"
#include "optim/adamw.h"
#include "tensor/factory.h"

namespace quern {

namespace {

constexpr double kLearningRate = 1e-4;
constexpr int64_t kMostExtent = int64_t{1} << 24;  // squares of it fit 64 bits
constexpr std::array kDimensions{MlpDimension::layers, MlpDimension::width, MlpDimension::batch,
                                 MlpDimension::steps};
constexpr size_t kParts = 3;  // forward, backward, optimizer

int64_t& extent(MlpShape& shape, MlpDimension dimension) {
  switch (dimension) {
    case MlpDimension::layers: return shape.layers;
    case MlpDimension::width: return shape.width;
    case MlpDimension::batch: return shape.batch;
    case MlpDimension::steps: return shape.steps;
    case MlpDimension::none: break;
  }
  fail("bench mlp: the base has no scaled dimension");
}

void check_extent(MlpShape shape, MlpDimension dimension, int64_t scale) {
  const int64_t value = extent(shape, dimension);
  if (value <= kMostExtent / scale) return;
  throw UsageError(cat("--", name_of(dimension), " is ", value, ", and scaled by ", scale,
                       " more than ", kMostExtent));
}

void check_options(const MlpBenchOptions& options) {
  const auto check = [](const char* flag, int64_t value) {
    if (value < 1) throw UsageError(cat("--", flag, " is ", value, ", expected at least 1"));
  };
  check("layers", options.base.layers);
  check("width", options.base.width);
  check("batch", options.base.batch);
  check("steps", options.base.steps);
  for (const int64_t scale : options.scales) check("scales", scale);
  check("warmup", options.warmup);
  check("trials", options.trials);
  for (const MlpDimension dimension : kDimensions) check_extent(options.base, dimension, 1);
  for (const MlpDimension dimension : options.dimensions) {
    for (const int64_t scale : options.scales) check_extent(options.base, dimension, scale);
  }
}

class MlpRunner {
 public:
  MlpRunner(const MlpShape& shape, Precision precision, bool optimizer)
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

  // One run; marks after each part of each step.
  void run(Timeline* timeline) {
    const auto mark = [&] {
      if (timeline) timeline->mark();
    };
    for (int64_t i = 0; i < steps_; ++i) {
      arena_->zero_grad();
      const Variable y = mean(model_(x_));
      mark();
      backward(y);
      mark();
      if (optimizer_) optimizer_->step();
      mark();
    }
  }

 private:
  int64_t steps_;
  Tensor x_;
  Sequential model_;
  std::optional<ParameterArena> arena_;
  std::optional<AdamW> optimizer_;
};

// Every part's time in each run, summed over its steps, from the intervals of all runs.
void summarize_runs(MlpRow& row, const std::vector<double>& intervals, size_t trials) {
  const size_t per_run = intervals.size() / trials;
  std::vector<double> total(trials, 0.0);
  std::vector<std::vector<double>> parts(kParts, std::vector<double>(trials, 0.0));
  for (size_t i = 0; i < intervals.size(); ++i) {
    total[i / per_run] += intervals[i];
    parts[i % kParts][i / per_run] += intervals[i];
  }
  row.total = summarize(total);
  row.forward = summarize(parts[0]);
  row.backward = summarize(parts[1]);
  row.optimizer = summarize(parts[2]);
}

void measure(MlpRow& row, const MlpBenchOptions& options) {
  MlpRunner runner(row.one.shape, row.precision, options.optimizer);
  for (int64_t i = 0; i < options.warmup; ++i) runner.run(nullptr);
  Context::current().synchronize();
  const auto trials = static_cast<size_t>(options.trials);
  Timeline timeline(1 + trials * static_cast<size_t>(row.one.shape.steps) * kParts);
  timeline.mark();
  for (size_t i = 0; i < trials; ++i) runner.run(&timeline);
  summarize_runs(row, timeline.intervals(), trials);
}

}  // namespace

const char* name_of(MlpDimension dimension) {
  switch (dimension) {
    case MlpDimension::none: return "base";
    case MlpDimension::layers: return "layers";
    case MlpDimension::width: return "width";
    case MlpDimension::batch: return "batch";
    case MlpDimension::steps: return "steps";
  }
  fail("bench mlp: unknown dimension");
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
  const Context& context = Context::current();
  std::vector<MlpRow> rows;
  for (const MlpCase& one : mlp_cases(options)) {
    context.allocator(context.device())->release_cached();
    MlpRow row;
    row.one = one;
    row.precision = precision;
    try {
      measure(row, options);
    } catch (const OutOfMemory& error) {
      row = {one, precision, {}, {}, {}, {}, 0.0, error.what()};
    }
    row.base_ms = rows.empty() ? row.total.median : rows.front().total.median;
    rows.push_back(row);
    if (on_row) on_row(rows.back());
  }
  return rows;
}

std::vector<Column> mlp_columns(bool optimizer, bool on_gpu) {
  std::vector<Column> columns{{"", "peer"},
                              {"precision", "precision", 0, 9, Align::left},
                              {"scaled", "scaled", 0, 6, Align::left},
                              {"by", "scale", 0, 3},
                              {"layers", "layers", 0, 6},
                              {"width", "width", 0, 6},
                              {"batch", "batch", 0, 6},
                              {"steps", "steps", 0, 5},
                              {"forward ms", "forward_ms", 3, 10},
                              {"backward ms", "backward_ms", 3, 11}};
  if (optimizer) columns.push_back({"optimizer ms", "optimizer_ms", 3, 12});
  columns.insert(columns.end(),
                 {{"total ms", "total_ms", 3, 9},
                  {"std ms", "std_ms", 3, 8},
                  {"of base", "ratio", 2, 8},
                  {on_gpu ? "TFLOP/s" : "GFLOP/s", on_gpu ? "tflops" : "gflops", 2, 8}});
  return columns;
}

std::vector<Cell> mlp_cells(const MlpRow& row, bool optimizer, bool on_gpu,
                            const std::string& peer) {
  const MlpShape& s = row.one.shape;
  std::vector<Cell> cells{peer,
                          std::string(name_of(row.precision)),
                          std::string(name_of(row.one.scaled)),
                          row.one.scale,
                          s.layers,
                          s.width,
                          s.batch,
                          s.steps};
  if (!row.out_of_memory.empty()) return cells;
  cells.insert(cells.end(), {row.forward.median, row.backward.median});
  if (optimizer) cells.emplace_back(row.optimizer.median);
  const double rate = s.flops() / (row.total.median / 1e3) / (on_gpu ? 1e12 : 1e9);
  // A base that did not fit makes the ratio infinite, which a table leaves out.
  cells.insert(cells.end(),
               {row.total.median, row.total.std, row.total.median / row.base_ms, rate});
  return cells;
}

}  // namespace quern
