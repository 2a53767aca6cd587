#include "autograd/ops/concat.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/split.h"
#include "autograd/ops/view.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern::testing_support {

namespace {

using Inputs = std::vector<Variable>;

// A row of 0 and 1, as u8 and as bool.
Tensor mask_of(const std::vector<uint8_t>& bits, const Shape& shape, DType dtype) {
  return from_vector(bits, shape).to(dtype);
}

void add_views(std::vector<OpCase>& cases) {
  const auto add = [&](const char* op, const char* label, Tensor x, auto&& fn) {
    cases.push_back({op, label, {std::move(x)}, [fn](const Inputs& in) { return fn(in[0]); }, {}});
  };
  using V = const Variable&;
  add("reshape", "a view", values({3, 4}, 1), [](V x) { return reshape(x, {2, -1}); });
  add("reshape", "a copy", strided_values({3, 4}, 1), [](V x) { return reshape(x, {12}); });
  add("reshape", "no elements", values({0, 4}, 1), [](V x) { return reshape(x, {2, 0}); });
  add("transpose", "outer dimensions", values({2, 3, 4}, 1),
      [](V x) { return transpose(x, 0, 1); });
  add("transpose", "back again", strided_values({2, 3}, 1),
      [](V x) { return transpose(x, 0, -1); });
  add("permute", "a cycle", values({2, 3, 4}, 1), [](V x) { return permute(x, {1, 2, 0}); });
  add("permute", "negative dimensions", values({2, 3, 4}, 1), [](V x) {
    return permute(x, {-1, 0, 1});
  });
  add("slice", "inside", values({3, 5}, 1), [](V x) { return slice(x, 1, 1, 4); });
  add("slice", "nothing", values({3, 5}, 1), [](V x) { return slice(x, 0, 2, 2); });
  add("slice", "strided", strided_values({3, 5}, 1), [](V x) { return slice(x, -1, 0, 2); });
  add("expand", "outside", values({3}, 1), [](V x) { return expand(x, {2, 3}); });
  add("expand", "inside", values({2, 1, 3, 1}, 1), [](V x) { return expand(x, {2, 4, 3, 2}); });
  add("expand", "to nothing", values({1, 3}, 1), [](V x) { return expand(x, {0, 3}); });
  add("contiguous", "strided", strided_values({3, 5}, 1), [](V x) { return contiguous(x); });
  add("contiguous", "as it is", values({3, 5}, 1), [](V x) { return contiguous(x); });
}

void add_joins(std::vector<OpCase>& cases) {
  cases.push_back({"concat",
                   "first dimension, one part empty",
                   {values({2, 3}, 1), values({0, 3}, 2), values({1, 3}, 3)},
                   [](const Inputs& in) { return concat(in, 0); },
                   {}});
  cases.push_back({"concat",
                   "last dimension, strided",
                   {strided_values({2, 3}, 1), values({2, 4}, 2)},
                   [](const Inputs& in) { return concat(in, -1); },
                   {}});
  cases.push_back({"concat",
                   "one part twice",
                   {values({2, 3}, 1)},
                   [](const Inputs& in) {
                     return concat({in[0], in[0]}, 1);
                   },
                   {}});
  cases.push_back({"split",
                   "all parts used, one empty",
                   {values({3, 6}, 1)},
                   [](const Inputs& in) {
                     return join(split(in[0], {1, 0, 5}, -1));
                   },
                   {}});
  cases.push_back({"split",
                   "one part used",
                   {values({5, 2}, 1)},
                   [](const Inputs& in) {
                     return split(in[0], {2, 2, 1}, 0)[1];
                   },
                   {}});
  cases.push_back({"split",
                   "strided",
                   {strided_values({5, 2}, 1)},
                   [](const Inputs& in) {
                     return join(split(in[0], {2, 3}, 0));
                   },
                   {}});
}

void add_masks(std::vector<OpCase>& cases) {
  for (const DType dtype : {DType::u8, DType::boolean}) {
    cases.push_back({"masked_fill",
                     cat("a broadcast mask of ", dtype),
                     {values({2, 3, 4}, 1)},
                     [dtype](const Inputs& in) {
                       const Tensor mask = mask_of({1, 0, 1}, {3, 1}, dtype);
                       return masked_fill(in[0], mask, 2.5);
                     },
                     {}});
  }
  cases.push_back({"masked_fill",
                   "strided",
                   {strided_values({2, 3}, 1)},
                   [](const Inputs& in) {
                     const Tensor mask = mask_of({1, 0, 0, 0, 1, 0}, {2, 3}, DType::u8);
                     return masked_fill(in[0], mask, -1.0);
                   },
                   {}});
  for (const Shape& shape : {Shape{2, 4, 4}, Shape{3, 5}, Shape{2, 2, 5, 3}, Shape{2, 0, 3}}) {
    cases.push_back({"causal_mask",
                     shape.str(),
                     {values(shape, 1)},
                     [](const Inputs& in) { return causal_mask(in[0], -2.0); },
                     {}});
  }
  cases.push_back({"causal_mask",
                   "-inf before a softmax, rows without any key",
                   {strided_values({2, 5, 3}, 1)},
                   [](const Inputs& in) { return softmax(causal_mask(in[0])); },
                   {}});
}

void add_lookups(std::vector<OpCase>& cases) {
  for (const DType dtype : {DType::i32, DType::i64, DType::u16}) {
    cases.push_back({"embedding",
                     cat("repeated ids of ", dtype),
                     {values({5, 3}, 1)},
                     [dtype](const Inputs& in) {
                       const std::vector<int32_t> ids{4, 0, 4, 1, 4, 0};
                       return embedding(in[0], from_vector(ids, {2, 3}).to(dtype));
                     },
                     {}});
  }
  cases.push_back({"embedding",
                   "no ids, a strided table",
                   {strided_values({5, 3}, 1)},
                   [](const Inputs& in) {
                     return embedding(in[0], from_vector(std::vector<int32_t>{}, {0, 2}));
                   },
                   {}});
  for (const Shape& shape : {Shape{4, 3}, Shape{3, 2, 3}, Shape{2, 2, 1, 3}, Shape{0, 2, 3}}) {
    cases.push_back({"add_rows",
                     shape.str(),
                     {values(shape, 1), strided_values({5, 3}, 2)},
                     [](const Inputs& in) { return add_rows(in[0], in[1], 1); },
                     {}});
  }
  cases.push_back({"gather",
                   "middle dimension, repeated",
                   {values({2, 3, 2}, 1)},
                   [](const Inputs& in) {
                     const std::vector<int64_t> index{0, 2, 0, 1, 2, 2, 1, 1,
                                                      1, 0, 2, 0, 0, 1, 0, 1};
                     return gather(in[0], 1, from_vector(index, {2, 4, 2}));
                   },
                   {}});
  cases.push_back({"gather",
                   "last dimension, i32, strided",
                   {strided_values({3, 4}, 1)},
                   [](const Inputs& in) {
                     return gather(in[0], -1, from_vector(std::vector<int32_t>{3, 0, 3}, {3, 1}));
                   },
                   {}});
  cases.push_back({"gather",
                   "nothing",
                   {values({3, 4}, 1)},
                   [](const Inputs& in) {
                     return gather(in[0], 0, from_vector(std::vector<int64_t>{}, {0, 4}));
                   },
                   {}});
}

}  // namespace

std::vector<OpCase> shape_cases() {
  std::vector<OpCase> cases;
  add_views(cases);
  add_joins(cases);
  add_masks(cases);
  add_lookups(cases);
  return cases;
}

}  // namespace quern::testing_support
