#include "bench/dtypes.h"

#include <algorithm>
#include <map>

#include "autograd/ops/cast.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/tape.h"
#include "bench/precision_scope.h"
#include "nn/activations.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"
#include "run/model_instance.h"
#include "tensor/factory.h"
#include "train/training_step.h"

namespace quern {

namespace {

constexpr int64_t kToyBatch = 4, kToyIn = 8, kToyHidden = 16, kToyClasses = 5;
constexpr int64_t kBatch = 2, kContext = 16;

// Records the outputs of ops and the gradients that arrive at them.
class DtypeObserver : public RangeObserver, public OutputObserver, public GradientObserver {
 public:
  void on_begin(const Range& range) override { path_.emplace_back(range.name); }
  void on_end() override { path_.pop_back(); }

  void on_output(const char* op, const Tensor& output) override {
    std::string name;
    for (const std::string& part : path_) name += part + ".";
    if (path_.empty() || path_.back() != op) name += cat(op, ".");
    name.pop_back();
    if (const int n = ++seen_[name]; n > 1) name += cat(" ", n);
    made_.push_back({Context::current().next_node, output.raw_data()});
    activations.push_back({"activation", name, output.shape(), output.dtype()});
  }

  // An op's outputs are the latest ones with its number, since numbers of unrecorded ops are used
  // again.
  void on_gradient(uint64_t order, int output, int outputs, const Tensor& grad) override {
    size_t end = made_.size();
    while (end > 0 && made_[end - 1].order != order) --end;
    const size_t at = end - static_cast<size_t>(outputs) + static_cast<size_t>(output);
    QUERN_CHECK(at < end, "bench dtypes: a gradient of an output that was not shown");
    gradients.push_back({"gradient", activations[at].name, grad.shape(), grad.dtype()});
  }

  // Sets the kind of the latest output that shares the memory of `x`.
  void call(const Tensor& x, const char* kind) {
    for (size_t i = made_.size(); i-- > 0;) {
      if (made_[i].data != x.raw_data()) continue;
      activations[i].kind = kind;
      return;
    }
    fail(cat("bench dtypes: the ", kind, " came from no op"));
  }

  std::vector<DtypeEntry> activations, gradients;

 private:
  struct Made {
    uint64_t order;
    const void* data;
  };

  std::vector<std::string> path_;
  std::map<std::string, int> seen_;
  std::vector<Made> made_;  // parallel to `activations`
  Observe<OutputObserver> observe_outputs_{*this};
  Observe<GradientObserver> observe_gradients_{*this};
  ObserveRanges observe_ranges_{*this};
};

// x (B, in) -> logits (B, classes). The matrix products compute in `precision`.
class ToyModel : public Module {
 public:
  Variable logits(const Variable& x) const {
    return named("fc2", fc2_, named("ln", ln_, named("relu", relu_, named("fc1", fc1_, x))));
  }
  void declare(ParameterList& list) override {
    list.add("fc1", fc1_);
    list.add("ln", ln_);
    list.add("fc2", fc2_);
  }

 private:
  static Variable named(const char* name, const Layer& layer, const Variable& x) {
    const RangeScope range(RangeKind::module, name);
    return layer(x);
  }

  Linear fc1_{kToyIn, kToyHidden, false};
  ReLU relu_;
  LayerNorm ln_{kToyHidden};
  Linear fc2_{kToyHidden, kToyClasses, false};
};

void add_parameters(std::vector<DtypeEntry>& entries, const ParameterArena& arena) {
  for (const Parameter* parameter : arena.parameters()) {
    entries.push_back({"parameter", parameter->name(), parameter->shape(), DType::f32});
  }
  for (const Parameter* parameter : arena.parameters()) {
    const Tensor& read = parameter->weight().value();
    if (read.dtype() == DType::f32) continue;
    entries.push_back({"copy", parameter->name(), parameter->shape(), read.dtype()});
  }
}

void add_observed(std::vector<DtypeEntry>& entries, const DtypeObserver& observer,
                  const ParameterArena& arena) {
  entries.insert(entries.end(), observer.activations.begin(), observer.activations.end());
  entries.insert(entries.end(), observer.gradients.begin(), observer.gradients.end());
  for (const Parameter* parameter : arena.parameters()) {
    QUERN_CHECK(!parameter->leaf()->fresh, "bench dtypes: no gradient reached ", parameter->name());
    const Tensor& grad = parameter->grad();
    entries.push_back({"gradient", parameter->name(), grad.shape(), grad.dtype()});
  }
}

std::vector<DtypeEntry> observe_toy(Precision precision) {
  ToyModel model;
  ParameterArena arena(model, {precision});
  const Tensor x = normal({kToyBatch, kToyIn}, 0.0, 1.0);
  const Tensor targets = random_integers({kToyBatch}, kToyClasses);
  std::vector<DtypeEntry> entries{{"input", "x", x.shape(), x.dtype()},
                                  {"input", "targets", targets.shape(), targets.dtype()}};
  add_parameters(entries, arena);
  arena.zero_grad();
  DtypeObserver observer;
  const Variable logits = model.logits(cast(x, operand_type(precision)));
  const Variable loss = cross_entropy(logits, targets);
  observer.call(logits.value(), "logits");
  observer.call(loss.value(), "loss");
  backward(loss);
  add_observed(entries, observer, arena);
  return entries;
}

// The fused head computes a few rows of logits at a time, inside the loss's op. So an extra forward
// computes the logits of all rows.
void observe_logits(std::vector<DtypeEntry>& entries, const TransformerLM& model,
                    const Tensor& tokens) {
  const NoGrad no_grad;
  const Variable logits = model.logits(tokens);
  entries.push_back({"logits", "model.logits", logits.shape(), logits.dtype()});
}

std::vector<DtypeEntry> observe_lm(Precision precision, KernelKind kernels) {
  const ModelConfig config{
      .vocab_size = 61, .context = kContext, .d_model = 32, .d_ff = 64, .layers = 2, .heads = 2};
  ModelOptions options;
  options.precision = precision;
  options.kernels = kernels;
  ModelInstance instance(config, options, InitScheme::normal, true, 0);
  const auto [tokens, targets] = random_batch(config, kBatch);
  std::vector<DtypeEntry> entries{{"input", "tokens", tokens.shape(), tokens.dtype()},
                                  {"input", "targets", targets.shape(), targets.dtype()}};
  add_parameters(entries, instance.arena);
  observe_logits(entries, instance.model, tokens);
  instance.arena.zero_grad();
  DtypeObserver observer;
  const Variable loss = instance.model.loss(tokens, targets);
  observer.call(loss.value(), "loss");
  backward(loss);
  add_observed(entries, observer, instance.arena);
  return entries;
}

// Puts the entries into column `column` of the rows; inserts new rows after their predecessor.
void merge(std::vector<DtypeRow>& rows, DtypeModel model, const std::vector<DtypeEntry>& entries,
           size_t column, size_t columns) {
  size_t next = 0;
  for (const DtypeEntry& entry : entries) {
    const auto found = std::ranges::find_if(rows, [&](const DtypeRow& row) {
      return row.kind == entry.kind && row.name == entry.name;
    });
    size_t at = static_cast<size_t>(found - rows.begin());
    if (found == rows.end()) {
      at = next;
      rows.insert(rows.begin() + static_cast<std::ptrdiff_t>(at),
                  {model, entry.kind, entry.name, entry.shape, std::vector<std::string>(columns)});
    }
    rows[at].dtypes[column] = name_of(entry.dtype);
    next = at + 1;
  }
}

}  // namespace

std::vector<DtypeEntry> observe_dtypes(DtypeModel model, Precision precision, KernelKind kernels) {
  const MatmulMathScope math(precision);
  switch (model) {
    case DtypeModel::toy: return observe_toy(precision);
    case DtypeModel::lm: return observe_lm(precision, kernels);
  }
  fail("bench dtypes: unknown model");
}

std::vector<DtypeRow> bench_dtypes(DtypeModel model, const std::vector<Precision>& precisions,
                                   KernelKind kernels) {
  std::vector<DtypeRow> rows;
  for (size_t i = 0; i < precisions.size(); ++i) {
    merge(rows, model, observe_dtypes(model, precisions[i], kernels), i, precisions.size());
  }
  return rows;
}

TableRow table_row(const DtypeRow& row, const std::vector<Precision>& precisions) {
  Fields fields{{{"model", "model", 0, 5, Align::left, 1}, name_of(row.model)},
                {{"tensor", "kind", 0, 10, Align::left}, row.kind},
                {{"name", "name", 0, 54, Align::left}, row.name},
                {{"shape", "shape", 0, 18, Align::left},
                 std::vector<int64_t>(row.shape.begin(), row.shape.end())}};
  for (size_t i = 0; i < precisions.size(); ++i) {
    const char* name = name_of(precisions[i]);
    const std::string& dtype = row.dtypes[i];
    fields.push_back({{name, name, 0, 4, Align::left}, dtype.empty() ? Cell() : Cell(dtype)});
  }
  return {fields, {}, {}};
}

std::string dtype_lesson() {
  return "Under bf16 the parameters (as the optimizer updates them), their gradients and "
         "the loss\nstay FP32; matrix products read BF16 copies and BF16 activations and sum in "
         "FP32. Norms read their\nFP32 parameters, not the copies, and keep their statistics in "
         "FP32. tf32 rounds the inputs of\nproducts inside the GPU's tensor cores: no tensor has "
         "another dtype for it.\n";
}

}  // namespace quern
