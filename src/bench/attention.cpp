#include "bench/attention.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "autograd/ops/attention.h"
#include "autograd/tape.h"
#include "base/counted.h"
#include "base/error.h"
#include "bench/precision_scope.h"
#include "config/config.h"
#include "model/model_config.h"
#include "tensor/factory.h"
#include "tensor/graph.h"

namespace quern {

namespace {

// The grid's shapes where the options give none.
struct GridShapes {
  std::vector<int64_t> dims, lengths;
  std::vector<bool> causal;
};

constexpr int64_t kModelWidth = 2048;
constexpr int64_t kWideDim = 80, kWideHeads = 32;  // the 2.7B model's heads
constexpr int64_t kCourseBatch = 8;

GridShapes small_shapes(AttentionGrid grid) {
  if (grid == AttentionGrid::course) return {{16, 64}, {128, 256, 512}, {false}};
  return {{64}, {128, 256, 512}, {true, false}};
}

GridShapes own_shapes(AttentionGrid grid, int64_t D, bool small) {
  if (small) return small_shapes(grid);
  if (grid == AttentionGrid::course) {
    return {{16, 32, 64, 128}, {256, 1024, 4096, 8192, 16384}, {false}};
  }
  std::vector<int64_t> lengths{512, 1024, 2048, 4096};
  if (D != kWideDim) lengths.insert(lengths.end(), {8192, 16384});
  return {{64, 96, 128, kWideDim}, lengths, {true, false}};
}

AttentionCase make_case(AttentionGrid grid, int64_t tokens, int64_t T, int64_t D, bool causal) {
  if (grid == AttentionGrid::course) return {kCourseBatch, 1, T, D, causal};
  const int64_t heads = D == kWideDim ? kWideHeads : std::max<int64_t>(1, kModelWidth / D);
  return {std::max<int64_t>(1, tokens / T), heads, T, D, causal};
}

template <class T>
std::vector<T> first_given(const std::vector<T>& asked, const std::vector<T>& own) {
  return asked.empty() ? own : asked;
}

bool is_flash(AttentionVariant variant) {
  return variant == AttentionVariant::flash || variant == AttentionVariant::portable;
}

// Attention on random inputs. The forward is recorded and the backward runs the tape. Both cost
// only the op's own kernels: each input is a leaf with a single use, so its gradient is a handle to
// the op's output.
class AttentionOp {
 public:
  AttentionOp(const AttentionCase& shape, Precision precision, AttentionVariant variant)
      : flash_(is_flash(variant)) {
    options_.causal = shape.causal;
    options_.portable = variant == AttentionVariant::portable;
    const DType dtype = operand_type(precision);
    const auto random = [&](int64_t heads) {
      return normal({shape.B, shape.T, heads, shape.D}, 0, 1, dtype);
    };
    q_ = Variable::leaf(random(shape.H));
    for (Variable* input : {&k_, &v_}) *input = Variable::leaf(random(shape.Hk));
    d_o_ = random(shape.H);
  }

  void forward() {
    o_ = flash_ ? flash_attention(q_, k_, v_, options_) : naive_attention(q_, k_, v_, options_);
  }

  void backward() {
    quern::backward(o_, d_o_);
    o_ = {};
    for (const Variable* input : {&q_, &k_, &v_}) input->leaf_store()->zero();
  }

 private:
  bool flash_;
  AttentionOptions options_;
  Variable q_, k_, v_, o_;
  Tensor d_o_;
};

// Captured launches of the op: forward and backward in one graph each, with a memory pool of their
// own. The op must have run before, so that nothing is left to set up.
class CapturedAttention {
 public:
  explicit CapturedAttention(AttentionOp& op) : pool_(current_allocator().make_pool()) {
    const PoolScope scope(current_allocator(), pool_);
    forward_.emplace([&] { op.forward(); });
    backward_.emplace([&] { op.backward(); });
  }

  void forward() const { forward_->launch(); }
  void backward() const { backward_->launch(); }

 private:
  std::shared_ptr<MemoryPool> pool_;
  std::optional<Graph> forward_, backward_;
};

// Runs one iteration, which is also the warm-up of first calls.
void count_memory(AttentionRow& row, AttentionOp& op, int64_t before) {
  Allocator& allocator = current_allocator();
  allocator.reset_peak();
  op.forward();
  row.saved_bytes = allocator.stats().allocated - before;
  op.backward();
  row.peak_bytes = allocator.stats().peak_allocated - before;
}

template <class Op>
void measure(AttentionRow& row, Op& op, const AttentionBenchOptions& options) {
  const std::vector<double> times =
      time_rounds(options.warmup, options.steps, 2, [&](const Mark& mark) {
        op.forward();
        mark();
        op.backward();
        mark();
      });
  row.forward = summarize(part_of(times, 2, 0));
  row.backward = summarize(part_of(times, 2, 1));
}

AttentionRow bench_case(const AttentionCase& shape, Precision precision, AttentionVariant variant,
                        const AttentionBenchOptions& options) {
  const MatmulMathScope math(precision);
  AttentionRow row;
  row.variant = variant;
  row.precision = precision;
  row.shape = shape;
  row.out_of_memory = out_of_memory_in([&] {
    const int64_t before = current_allocator().stats().allocated;
    AttentionOp op(shape, precision, variant);
    count_memory(row, op, before);
    if (variant == AttentionVariant::naive_graph) {
      Context::current().synchronize();
      current_allocator().release_cached();  // makes room for the graphs' pool
      CapturedAttention captured(op);
      measure(row, captured, options);
    } else {
      measure(row, op, options);
    }
  });
  if (!row.out_of_memory.empty()) row.saved_bytes = row.peak_bytes = 0;
  return row;
}

std::vector<AttentionVariant> variants_of(const AttentionBenchOptions& options) {
  const bool on_gpu = Context::current().device().is_cuda();
  if (!options.variants.empty()) return options.variants;
  std::vector<AttentionVariant> all{AttentionVariant::naive};
  if (on_gpu) all.push_back(AttentionVariant::naive_graph);
  all.push_back(AttentionVariant::flash);
  return all;
}

void check_options(const AttentionBenchOptions& options, const std::vector<AttentionCase>& cases) {
  const bool graph = std::find(options.variants.begin(), options.variants.end(),
                               AttentionVariant::naive_graph) != options.variants.end();
  if (graph && !Context::current().device().is_cuda()) {
    throw UsageError("--variant naive_graph needs a GPU: the CPU has no graphs");
  }
  if (!options.variants.empty() && std::ranges::none_of(options.variants, is_flash)) return;
  for (const AttentionCase& shape : cases) {
    if (flash_supports(shape.D)) continue;
    throw UsageError(cat("--", options.shapes.empty() ? "dims" : "shapes", " has D = ", shape.D,
                         ", which flash does not support (multiples of 8 up to 256): leave it out, "
                         "or choose --variant naive"));
  }
}

double tflops(double flops, double ms) {
  return ms > 0.0 ? flops / ms / 1e9 : 0.0;
}

}  // namespace

double AttentionCase::forward_flops() const {
  const double all = 4.0 * static_cast<double>(B) * static_cast<double>(H) *
                     static_cast<double>(T) * static_cast<double>(T) * static_cast<double>(D);
  return causal ? all / 2 : all;
}

double AttentionRow::forward_tflops() const {
  return tflops(shape.forward_flops(), forward.median);
}

double AttentionRow::backward_tflops() const {
  return tflops(shape.backward_flops(), backward.median);
}

std::vector<AttentionCase> attention_cases(const AttentionBenchOptions& options) {
  std::vector<AttentionCase> cases;
  for (AttentionCase shape : options.shapes) {
    for (const bool causal : first_given(options.causal, {true, false})) {
      shape.causal = causal;
      cases.push_back(shape);
    }
  }
  if (!cases.empty()) return cases;
  for (const AttentionGrid grid : options.grids) {
    for (const int64_t D : first_given(options.dims, own_shapes(grid, 0, options.small).dims)) {
      const GridShapes own = own_shapes(grid, D, options.small);
      for (const int64_t T : first_given(options.lengths, own.lengths)) {
        for (const bool causal : first_given(options.causal, own.causal)) {
          cases.push_back(make_case(grid, options.tokens, T, D, causal));
        }
      }
    }
  }
  return cases;
}

std::vector<AttentionRow> bench_attention(const AttentionBenchOptions& options,
                                          const std::function<void(const AttentionRow&)>& on_row) {
  const std::vector<AttentionCase> cases = attention_cases(options);
  check_options(options, cases);
  std::vector<AttentionRow> rows;
  for (const AttentionCase& shape : cases) {
    for (const Precision precision : options.precisions) {
      for (const AttentionVariant variant : variants_of(options)) {
        rows.push_back(bench_case(shape, precision, variant, options));
        if (on_row) on_row(rows.back());
      }
    }
  }
  return rows;
}

TableRow table_row(const AttentionRow& row) {
  const AttentionCase& s = row.shape;
  return {{{{"variant", "backend", 0, 11, Align::left}, name_of(row.variant)},
           {{"dtype", "dtype", 0, 5, Align::left}, name_of(row.precision)},
           {{"B", "B", 0, 3}, s.B},
           {{"H", "", 0, 3}, s.Hk == s.H ? cat(s.H) : cat(s.H, "/", s.Hk)},
           {{"", "H"}, s.H},
           {{"", "Hk"}, s.Hk},
           {{"T", "T", 0, 6}, s.T},
           {{"D", "D", 0, 3}, s.D},
           {{"causal", "causal", 0, 6, Align::left}, s.causal}},
          {{{"fwd ms", "fwd_ms", 4, 9}, row.forward.median},
           {{"bwd ms", "bwd_ms", 4, 9}, row.backward.median},
           {{"fwd TF/s", "fwd_tflops", 3, 8}, row.forward_tflops()},
           {{"bwd TF/s", "bwd_tflops", 3, 8}, row.backward_tflops()},
           {{"saved MiB", "saved_mib", 1, 9}, mebibytes(row.saved_bytes)},
           {{"peak MiB", "peak_mib", 1, 8}, mebibytes(row.peak_bytes)}},
          row.out_of_memory};
}

}  // namespace quern
