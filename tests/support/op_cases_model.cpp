#include "autograd/ops/attention.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/swiglu_mlp.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern::testing_support {

namespace {

using Inputs = std::vector<Variable>;
constexpr double kEps = 1e-5;

RopeTable table_for(const Variable& x, int64_t positions, int64_t D) {
  return make_rope_table(positions, D, 100.0, x.dtype() == DType::f64 ? DType::f64 : DType::f32);
}

void add_softmax(std::vector<OpCase>& cases, const char* op, Variable (*fn)(const Variable&, int)) {
  const auto add = [&](const char* label, Tensor x, int dim) {
    cases.push_back(
        {op, label, {std::move(x)}, [=](const Inputs& in) { return fn(in[0], dim); }, {}});
  };
  add("last dimension", values({3, 7}, 1, -3.0, 3.0), -1);
  add("first dimension", values({5, 2, 3}, 1, -3.0, 3.0), 0);
  add("one column", values({3, 1}, 1), -1);
  add("no rows", values({0, 3}, 1), -1);
  add("strided", strided_values({3, 5}, 1), 1);
}

void add_norms(std::vector<OpCase>& cases) {
  const auto add = [&](const char* op, const char* naive, auto&& fn, auto&& naive_fn, int vectors) {
    const auto with_weights = [vectors](Tensor x) {
      const Shape width{x.dim(-1)};
      std::vector<Tensor> inputs{std::move(x)};
      for (int i = 0; i < vectors; ++i) inputs.push_back(values(width, 5 + i, 0.5, 1.5));
      return inputs;
    };
    for (const auto& [name, run] :
         {std::pair<const char*, std::function<Variable(const Inputs&)>>{op, fn},
          {naive, naive_fn}}) {
      cases.push_back({name, "odd width", with_weights(values({2, 3, 7}, 1)), run, {1, 2}});
      cases.push_back({name, "one row", with_weights(values({5}, 1)), run, {1, 2}});
      cases.push_back({name, "no rows", with_weights(values({0, 4}, 1)), run, {1, 2}});
      cases.push_back({name, "strided", with_weights(strided_values({4, 3}, 1)), run, {1, 2}});
    }
  };
  add(
      "rms_norm", "naive_rms_norm", [](const Inputs& in) { return rms_norm(in[0], in[1], kEps); },
      [](const Inputs& in) { return naive_rms_norm(in[0], in[1], kEps); }, 1);
  add(
      "layer_norm", "naive_layer_norm",
      [](const Inputs& in) { return layer_norm(in[0], in[1], in[2], kEps); },
      [](const Inputs& in) { return naive_layer_norm(in[0], in[1], in[2], kEps); }, 2);

  using Pair = std::pair<Variable, Variable>;
  using AddNorm = Pair (*)(const Inputs&);
  const std::pair<const char*, AddNorm> add_norms[] = {
      {"add_rms_norm", [](const Inputs& in) { return add_rms_norm(in[0], in[1], in[2], kEps); }},
      {"naive_add_rms_norm",
       [](const Inputs& in) { return naive_add_rms_norm(in[0], in[1], in[2], kEps); }},
      {"add_layer_norm",
       [](const Inputs& in) { return add_layer_norm(in[0], in[1], in[2], in[3], kEps); }},
      {"naive_add_layer_norm",
       [](const Inputs& in) { return naive_add_layer_norm(in[0], in[1], in[2], in[3], kEps); }}};
  for (const auto& [name, fn] : add_norms) {
    const bool biased = std::string(name).find("layer") != std::string::npos;
    const auto add_case = [&, fn = fn](const char* label, Tensor x, Tensor y, auto&& pick) {
      std::vector<Tensor> inputs{x, std::move(y), values({x.dim(-1)}, 5, 0.5, 1.5)};
      if (biased) inputs.push_back(values({x.dim(-1)}, 6));
      const auto run = [=](const Inputs& in) { return pick(fn(in)); };
      cases.push_back({name, label, inputs, run, {2, 3}});
    };
    const auto both = [](const Pair& p) { return join({p.first, p.second}); };
    add_case("both results used", values({2, 3, 5}, 1), values({2, 3, 5}, 2), both);
    add_case("only the sum used", values({3, 5}, 1), values({3, 5}, 2),
             [](const Pair& p) { return p.first; });
    add_case("only the norm used", values({3, 5}, 1), values({3, 5}, 2),
             [](const Pair& p) { return p.second; });
    add_case("strided", strided_values({3, 5}, 1), strided_values({3, 5}, 2), both);
    add_case("no rows", values({0, 5}, 1), values({0, 5}, 2), both);
  }
}

void add_dropout(std::vector<OpCase>& cases) {
  using Dropout = Variable (*)(const Variable&, double, const Tensor&, uint32_t);
  for (const auto& [name, fn] :
       {std::pair<const char*, Dropout>{"dropout", dropout}, {"naive_dropout", naive_dropout}}) {
    const auto add = [&, fn = fn](const char* label, Tensor x, double p) {
      cases.push_back({name,
                       label,
                       {std::move(x)},
                       [=](const Inputs& in) { return fn(in[0], p, make_draws(3, 1), 2); },
                       {}});
    };
    add("odd size", values({3, 5, 7}, 1), 0.3);
    add("whole vectors", values({4, 64}, 1), 0.1);
    add("nearly all dropped", values({33}, 1), 0.95);
    add("nothing dropped", values({33}, 1), 0.0);
    add("empty", values({0, 3}, 1), 0.5);
    add("strided", strided_values({4, 3}, 1), 0.5);
  }
}

void add_rope(std::vector<OpCase>& cases) {
  using Rope = Variable (*)(const Variable&, const RopeTable&, const Tensor&, int64_t);
  for (const auto& [name, fn] :
       {std::pair<const char*, Rope>{"rope", rope}, {"naive_rope", naive_rope}}) {
    const auto add = [&, fn = fn](const char* label, Tensor x, std::vector<int32_t> positions,
                                  Shape shape, int64_t first) {
      cases.push_back({name,
                       label,
                       {std::move(x)},
                       [=](const Inputs& in) {
                         const Tensor at =
                             positions.empty() ? Tensor() : from_vector(positions, shape);
                         return fn(in[0], table_for(in[0], 16, in[0].dim(-1)), at, first);
                       },
                       {}});
    };
    add("from the start", values({2, 3, 2, 6}, 1), {}, {}, 0);
    add("from position 5", values({1, 3, 1, 2}, 1), {}, {}, 5);
    add("any positions", values({2, 3, 1, 4}, 1), {7, 0, 7}, {3}, 0);
    add("positions of each sequence", values({2, 2, 1, 4}, 1), {3, 15, 0, 2}, {2, 2}, 0);
    add("heads inside a wider row", values({2, 3, 5, 4}, 1).slice(2, 1, 3), {}, {}, 0);
    add("heads the wrong way round", strided_values({1, 2, 3, 4}, 1), {}, {}, 0);
    add("no tokens", values({2, 0, 1, 4}, 1), {}, {}, 0);
  }
  for (const auto& [name, fn] :
       {std::pair<const char*, Variable (*)(const Variable&)>{"swiglu", swiglu},
        {"naive_swiglu", naive_swiglu}}) {
    const auto run = [fn = fn](const Inputs& in) { return fn(in[0]); };
    cases.push_back({name, "a batch", {values({2, 3, 10}, 1, -2.0, 2.0)}, run, {}});
    cases.push_back({name, "one row", {values({2}, 1)}, run, {}});
    cases.push_back({name, "no rows", {values({0, 4}, 1)}, run, {}});
    cases.push_back({name, "strided", {strided_values({3, 6}, 1)}, run, {}});
  }
  const auto run = [](const Inputs& in) { return swiglu_linear(in[0], in[1]); };
  const Tensor w = values({4, 5}, 2);
  cases.push_back({"swiglu_linear", "a batch", {values({2, 3, 10}, 1, -2.0, 2.0), w}, run, {}});
  cases.push_back({"swiglu_linear", "one row", {values({10}, 1), w}, run, {}});
  cases.push_back({"swiglu_linear", "no rows", {values({0, 10}, 1), w}, run, {}});
  cases.push_back({"swiglu_linear", "strided", {strided_values({3, 10}, 1), w}, run, {}});
  const auto keep = [](const Inputs& in) {
    return swiglu_linear(in[0], in[1], {}, ActivationOutput::kept);
  };
  cases.push_back({"swiglu_linear", "kept", {values({2, 3, 10}, 1, -2.0, 2.0), w}, keep, {}});
  cases.push_back({"swiglu_linear", "kept, no rows", {values({0, 10}, 1), w}, keep, {}});
  cases.push_back({"swiglu_linear", "kept, strided", {strided_values({3, 10}, 1), w}, keep, {}});
  const auto mlp = [](const Inputs& in) { return swiglu_mlp(in[0], in[1], in[2]); };
  const Tensor gates = values({10, 4}, 3);
  cases.push_back({"swiglu_mlp", "a batch", {values({2, 3, 4}, 1), gates, w}, mlp, {}});
  cases.push_back({"swiglu_mlp", "no rows", {values({0, 4}, 1), gates, w}, mlp, {}});
  const auto gelu = [](const Inputs& in) {
    return gelu_linear(in[0], in.size() > 2 ? in[2] : Variable(), in[1],
                       in.size() > 3 ? in[3] : Variable());
  };
  const Tensor wide = values({2, 3, 5}, 1, -2.0, 2.0), inner = values({5}, 3), b = values({4}, 4);
  cases.push_back({"gelu_linear", "a batch", {wide, w}, gelu, {}});
  cases.push_back({"gelu_linear", "inner bias", {wide, w, inner}, gelu, {}});
  cases.push_back({"gelu_linear", "both biases", {wide, w, inner, b}, gelu, {}});
  cases.push_back({"gelu_linear", "one row", {values({5}, 1), w, inner, b}, gelu, {}});
  cases.push_back({"gelu_linear", "no rows", {values({0, 5}, 1), w, inner, b}, gelu, {}});
  cases.push_back({"gelu_linear", "strided", {strided_values({3, 5}, 1), w, inner}, gelu, {}});
  const auto up = [](const Inputs& in) { return gate_up_linear(in[0], in[1]).gate_up; };
  cases.push_back({"gate_up_linear", "a batch", {values({2, 3, 5}, 1), values({8, 5}, 2)}, up, {}});
  cases.push_back({"gate_up_linear", "no rows", {values({0, 5}, 1), values({8, 5}, 2)}, up, {}});
}

struct AttentionSizes {
  const char* label;
  int64_t B, Tq, Tk, H, Hk, D;
  bool causal;
};

constexpr AttentionSizes kAttention[] = {
    {"causal", 2, 5, 5, 2, 2, 8, true},
    {"every key", 2, 3, 5, 2, 2, 8, false},
    {"grouped queries", 1, 4, 4, 4, 2, 8, true},
    {"one kv head", 2, 3, 3, 3, 1, 16, false},
    {"more keys than queries", 1, 3, 7, 2, 1, 8, true},
    {"queries that see no key", 1, 7, 3, 2, 2, 8, true},
    {"one query", 1, 1, 9, 2, 1, 8, true},
    {"more than one tile", 1, 67, 70, 1, 1, 8, true},
    {"no queries", 1, 0, 3, 1, 1, 8, false},
    {"no keys", 1, 3, 0, 1, 1, 8, false},
};

void add_attention(std::vector<OpCase>& cases) {
  using Attend =
      Variable (*)(const Variable&, const Variable&, const Variable&, const AttentionOptions&);
  for (const auto& [name, fn] : {std::pair<const char*, Attend>{"flash_attention", flash_attention},
                                 {"naive_attention", naive_attention}}) {
    for (const AttentionSizes& s : kAttention) {
      cases.push_back({name,
                       s.label,
                       {values({s.B, s.Tq, s.H, s.D}, 1), values({s.B, s.Tk, s.Hk, s.D}, 2),
                        values({s.B, s.Tk, s.Hk, s.D}, 3)},
                       [fn = fn, causal = s.causal](const Inputs& in) {
                         return fn(in[0], in[1], in[2], {.causal = causal});
                       },
                       {}});
    }
    cases.push_back({name,
                     "heads of one projection, own scale",
                     {values({2, 3, 4, 8}, 1).slice(2, 0, 2),
                      values({2, 3, 4, 8}, 2).slice(2, 2, 3), strided_values({2, 3, 1, 8}, 3)},
                     [fn = fn](const Inputs& in) {
                       return fn(in[0], in[1], in[2], {.causal = true, .scale = 0.7});
                     },
                     {}});
  }
  for (const AttentionSizes& s : {kAttention[0], kAttention[2], kAttention[3]}) {
    cases.push_back({"rope_attention",
                     s.label,
                     {values({s.B, s.Tk, (s.H + 2 * s.Hk) * s.D}, 1)},
                     [s](const Inputs& in) {
                       const Variable fresh = scale(in[0], 1.0);  // rotated in place
                       return rope_attention(fresh, s.H, s.Hk, s.D, table_for(in[0], 9, s.D),
                                             {.causal = s.causal});
                     },
                     {}});
    cases.push_back({"qkv_attention",
                     s.label,
                     {values({s.B, s.Tk, (s.H + 2 * s.Hk) * s.D}, 1)},
                     [s](const Inputs& in) {
                       return qkv_attention(in[0], s.H, s.Hk, s.D, {.causal = s.causal});
                     },
                     {}});
  }
}

}  // namespace

std::vector<OpCase> model_cases() {
  std::vector<OpCase> cases;
  add_softmax(cases, "softmax", softmax);
  add_softmax(cases, "log_softmax", log_softmax);
  add_norms(cases);
  add_dropout(cases);
  add_rope(cases);
  add_attention(cases);
  return cases;
}

}  // namespace quern::testing_support
