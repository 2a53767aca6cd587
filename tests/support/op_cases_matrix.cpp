#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/view.h"
#include "autograd/ops/weighted_sum.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern::testing_support {

namespace {

using Inputs = std::vector<Variable>;

Tensor matrix(const Shape& lead, int64_t rows, int64_t cols, bool transposed, int seed) {
  Shape shape = lead;
  shape.push_back(transposed ? cols : rows);
  shape.push_back(transposed ? rows : cols);
  return values(shape, seed);
}

void add_matmul(std::vector<OpCase>& cases) {
  struct Lead {
    const char* label;
    Shape a, b;
  };
  const std::vector<Lead> leads{
      {"single", {}, {}},          {"batch", {2, 3}, {2, 3}}, {"a batch, one b", {2, 2}, {}},
      {"one a, b batch", {}, {3}}, {"batch of one", {1}, {}}, {"an empty batch", {0}, {}}};
  for (const Lead& lead : leads) {
    for (const auto& [ta, tb] :
         {std::pair{false, false}, {false, true}, {true, false}, {true, true}}) {
      cases.push_back(
          {"matmul",
           cat(lead.label, ta ? ", a^T" : "", tb ? ", b^T" : ""),
           {matrix(lead.a, 3, 5, ta, 1), matrix(lead.b, 5, 2, tb, 2)},
           [ta = ta, tb = tb](const Inputs& in) { return matmul(in[0], in[1], ta, tb); },
           {}});
    }
  }
  const auto plain = [](const Inputs& in) { return matmul(in[0], in[1]); };
  const auto add = [&](const char* label, Tensor a, Tensor b) {
    cases.push_back({"matmul", label, {std::move(a), std::move(b)}, plain, {}});
  };
  add("transposed operands", strided_values({3, 5}, 1), strided_values({5, 2}, 2));
  add("rows at a distance", values({3, 7}, 1).slice(1, 1, 6), values({5, 4}, 2).slice(1, 0, 2));
  add("heads of a projection", values({2, 3, 2, 4}, 1).permute({0, 2, 1, 3}),
      values({2, 2, 4, 3}, 2));
  cases.push_back({"matmul",
                   "an expanded operand",
                   {values({1, 1, 5}, 1), values({2, 5, 2}, 2)},
                   [](const Inputs& in) {
                     return matmul(expand(in[0], {2, 3, 5}), in[1]);
                   },
                   {}});
  add("a vector each", values({1, 5}, 1), values({5, 1}, 2));
  add("no inner elements", values({3, 0}, 1), values({0, 2}, 2));
  add("no rows", values({0, 5}, 1), values({5, 2}, 2));
  cases.push_back({"matmul",
                   "one operand twice",
                   {values({3, 5}, 1)},
                   [](const Inputs& in) { return matmul(in[0], in[0], false, true); },
                   {}});
}

void add_linear(std::vector<OpCase>& cases) {
  const auto run = [](const Inputs& in) {
    return in.size() == 3 ? linear(in[0], in[1], in[2]) : linear(in[0], in[1]);
  };
  const auto add = [&](const char* op, const char* label, std::vector<Tensor> inputs, auto&& fn) {
    cases.push_back({op, label, std::move(inputs), fn, {}});
  };
  add("linear", "a batch", {values({2, 3, 5}, 1), values({4, 5}, 2)}, run);
  add("linear", "one row", {values({5}, 1), values({4, 5}, 2)}, run);
  add("linear", "bias", {values({2, 3, 5}, 1), values({4, 5}, 2), values({4}, 3)}, run);
  add("linear", "no rows", {values({0, 5}, 1), values({4, 5}, 2), values({4}, 3)}, run);
  add("linear", "strided", {strided_values({3, 5}, 1), strided_values({4, 5}, 2)}, run);
  const auto by = [](const Inputs& in) {
    return detail::linear_by(in[0], in[1], [](const Tensor& y, const Tensor& x, const Tensor& w) {
      detail::matrix_product(y, x, false, w, true);
    });
  };
  add("linear_by", "a batch", {values({2, 3, 5}, 1), values({4, 5}, 2)}, by);
  const auto weigh = [](const Inputs& in) { return weighted_sum(in[0], in[1]); };
  add("weighted_sum", "a batch", {values({2, 3, 7}, 1), values({7}, 2)}, weigh);
  add("weighted_sum", "one row", {values({33}, 1), values({33}, 2)}, weigh);
  add("weighted_sum", "no rows", {values({0, 3}, 1), values({3}, 2)}, weigh);
  add("weighted_sum", "no columns", {values({3, 0}, 1), values({0}, 2)}, weigh);
  add("weighted_sum", "strided", {strided_values({4, 3}, 1), values({3}, 2)}, weigh);
}

struct Targets {
  const char* label;
  std::vector<int32_t> ids;
};

void add_losses(std::vector<OpCase>& cases) {
  const int32_t skip = kIgnoreIndex;
  const std::vector<Targets> rows{{"all count", {0, 6, 3, 3, 5}},
                                  {"some are ignored", {skip, 6, 3, skip, 0}},
                                  {"all are ignored", {skip, skip, skip, skip, skip}},
                                  {"no rows", {}}};
  for (const Targets& t : rows) {
    const auto N = static_cast<int64_t>(t.ids.size());
    const auto ids = [t, N] { return from_vector(t.ids, {N}); };
    cases.push_back({"cross_entropy",
                     t.label,
                     {values({N, 7}, 1, -3.0, 3.0)},
                     [ids](const Inputs& in) { return cross_entropy(in[0], ids()); },
                     {}});
    cases.push_back({"naive_cross_entropy",
                     t.label,
                     {values({N, 7}, 1, -3.0, 3.0)},
                     [ids](const Inputs& in) { return naive_cross_entropy(in[0], ids()); },
                     {}});
    cases.push_back({"naive_z_loss",
                     t.label,
                     {values({N, 7}, 1, -3.0, 3.0)},
                     [ids](const Inputs& in) { return naive_z_loss(in[0], ids()); },
                     {}});
    cases.push_back({"lm_head_loss",
                     cat(t.label, ", with a z-loss"),
                     {values({N, 4}, 1), values({7, 4}, 2, -2.0, 2.0)},
                     [ids](const Inputs& in) {
                       return lm_head_loss(in[0], in[1], ids(),
                                           {.chunk_rows = 2, .scale = 2.5, .z_loss = 0.3})
                           .loss;
                     },
                     {}});
    for (const int64_t chunk : {2, 5}) {
      cases.push_back({"lm_head_cross_entropy",
                       cat(t.label, ", 13 words, chunks of ", chunk),
                       {values({N, 4}, 1), values({13, 4}, 2, -2.0, 2.0)},
                       [ids, chunk](const Inputs& in) {
                         return lm_head_cross_entropy(in[0], in[1], ids(), kIgnoreIndex, chunk);
                       },
                       {}});
    }
    for (const int64_t chunk : {1, 2, 100}) {
      cases.push_back({"lm_head_cross_entropy",
                       cat(t.label, ", chunks of ", chunk),
                       {values({N, 4}, 1), values({7, 4}, 2, -2.0, 2.0)},
                       [ids, chunk](const Inputs& in) {
                         return lm_head_cross_entropy(in[0], in[1], ids(), kIgnoreIndex, chunk,
                                                      2.5);
                       },
                       {}});
    }
  }
  const auto square = [] { return from_vector(std::vector<int64_t>{1, 0, 9, 2}, {2, 2}); };
  cases.push_back({"cross_entropy",
                   "batch and time, i64, another ignore_index, strided",
                   {strided_values({2, 2, 3}, 1)},
                   [square](const Inputs& in) { return cross_entropy(in[0], square(), 9); },
                   {}});
  cases.push_back({"naive_cross_entropy",
                   "batch and time, another ignore_index",
                   {values({2, 2, 3}, 1)},
                   [square](const Inputs& in) { return naive_cross_entropy(in[0], square(), 9); },
                   {}});
  cases.push_back(
      {"lm_head_cross_entropy",
       "batch and time, another ignore_index",
       {strided_values({2, 2, 4}, 1), values({3, 4}, 2)},
       [square](const Inputs& in) { return lm_head_cross_entropy(in[0], in[1], square(), 9, 3); },
       {}});
}

}  // namespace

std::vector<OpCase> matrix_cases() {
  std::vector<OpCase> cases;
  add_matmul(cases);
  add_linear(cases);
  add_losses(cases);
  return cases;
}

}  // namespace quern::testing_support
