#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/view.h"
#include "support/op_cases.h"

namespace quern::testing_support {

namespace {

using Inputs = std::vector<Variable>;

void add_binary(std::vector<OpCase>& cases, const char* op,
                Variable (*fn)(const Variable&, const Variable&)) {
  const auto run = [fn](const Inputs& in) { return fn(in[0], in[1]); };
  const auto add_case = [&](const char* label, Tensor a, Tensor b) {
    cases.push_back({op, label, {std::move(a), std::move(b)}, run, {}});
  };
  // b stays away from 0, where div has no derivative.
  add_case("one shape", values({3, 5}, 1), values({3, 5}, 2, 0.5, 2.0));
  add_case("b is broadcast inside and outside", values({2, 3, 4}, 1), values({3, 1}, 2, 0.5, 2.0));
  add_case("both are broadcast", values({2, 1, 3}, 1), values({4, 1}, 2, 0.5, 2.0));
  add_case("b is a scalar", values({3, 3}, 1), values({}, 2, 0.5, 2.0));
  add_case("a is a scalar", values({}, 1), values({7}, 2, 0.5, 2.0));
  add_case("no elements", values({0, 3}, 1), values({1, 3}, 2, 0.5, 2.0));
  add_case("strided", strided_values({3, 5}, 1), strided_values({2, 3, 5}, 2, 0.5, 2.0));
  cases.push_back({op,
                   "a strided gradient",
                   {values({3, 5}, 1), values({5}, 2, 0.5, 2.0)},
                   [fn](const Inputs& in) { return transpose(fn(in[0], in[1]), 0, 1); },
                   {}});
  cases.push_back({op,
                   "one input twice",
                   {values({4}, 3, 0.5, 2.0)},
                   [fn](const Inputs& in) { return fn(in[0], in[0]); },
                   {}});
}

void add_pointwise(std::vector<OpCase>& cases, const char* op,
                   const std::function<Variable(const Variable&)>& fn, double low, double high) {
  const auto run = [fn](const Inputs& in) { return fn(in[0]); };
  cases.push_back({op, "matrix", {values({5, 7}, 1, low, high)}, run, {}});
  cases.push_back({op, "scalar", {values({}, 2, low, high)}, run, {}});
  cases.push_back({op, "no elements", {values({2, 0}, 3, low, high)}, run, {}});
  cases.push_back({op, "strided", {strided_values({3, 4}, 4, low, high)}, run, {}});
}

void add_reduction(std::vector<OpCase>& cases, const char* op,
                   Variable (*along)(const Variable&, int, bool)) {
  for (const int dim : {0, 1, -1}) {
    for (const bool keepdim : {false, true}) {
      cases.push_back({op,
                       cat("dim ", dim, keepdim ? " kept" : ""),
                       {values({3, 4, 5}, 1)},
                       [=](const Inputs& in) { return along(in[0], dim, keepdim); },
                       {}});
    }
  }
  const auto last = [along](const Inputs& in) { return along(in[0], -1, false); };
  cases.push_back({op, "no rows", {values({0, 3}, 1)}, last, {}});
  cases.push_back({op, "one column", {values({3, 1}, 1)}, last, {}});
  cases.push_back({op, "strided", {strided_values({2, 3, 4}, 1)}, last, {}});
}

Variable max_values(const Variable& x, int dim, bool keepdim) {
  return max(x, dim, keepdim).values;
}

}  // namespace

std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> cases;
  add_binary(cases, "add", add);
  add_binary(cases, "sub", sub);
  add_binary(cases, "mul", mul);
  add_binary(cases, "div", div);

  add_pointwise(cases, "exp", exp, -2.0, 2.0);
  add_pointwise(cases, "log", log, 0.3, 3.0);
  add_pointwise(cases, "tanh", tanh, -2.0, 2.0);
  add_pointwise(cases, "sigmoid", sigmoid, -3.0, 3.0);
  add_pointwise(cases, "relu", relu, 0.1, 1.0);  // each side of the kink
  add_pointwise(cases, "relu", relu, -1.0, -0.1);
  add_pointwise(cases, "silu", silu, -3.0, 3.0);
  add_pointwise(cases, "gelu_tanh", gelu_tanh, -3.0, 3.0);
  add_pointwise(cases, "gelu_erf", gelu_erf, -3.0, 3.0);
  for (const double exponent : {-0.5, 0.0, 1.0, 2.0, 3.5}) {
    add_pointwise(
        cases, "pow", [=](const Variable& x) { return pow(x, exponent); }, 0.5, 2.0);
  }
  add_pointwise(cases, "sqrt", sqrt, 0.3, 3.0);
  add_pointwise(
      cases, "scale", [](const Variable& x) { return scale(x, 1.5, -0.25); }, -1.0, 1.0);
  add_pointwise(cases, "neg", neg, -1.0, 1.0);

  add_reduction(cases, "sum", sum);
  add_reduction(cases, "mean", mean);
  add_reduction(cases, "sum_squares", sum_squares);
  add_reduction(cases, "max", max_values);
  cases.push_back({"sum",
                   "a sum of nothing",
                   {values({0, 3}, 1)},
                   [](const Inputs& in) { return sum(in[0], 0); },
                   {}});
  cases.push_back({"sum",
                   "everything",
                   {strided_values({3, 4}, 1)},
                   [](const Inputs& in) { return sum(in[0]); },
                   {}});
  cases.push_back(
      {"mean", "everything", {values({33}, 1)}, [](const Inputs& in) { return mean(in[0]); }, {}});

  // Finite differences do not work through f32; tests/autograd/ops_test.cpp checks real casts.
  cases.push_back({"cast",
                   "itself",
                   {values({3}, 1)},
                   [](const Inputs& in) { return cast(in[0], in[0].dtype()); },
                   {}});
  return cases;
}

}  // namespace quern::testing_support
