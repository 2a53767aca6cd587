// Every argument that an op checks is refused by its name, with what was found and what was
// expected. An argument that is out of bounds by one is refused, the last one within is taken.
#include "autograd/ops/op_checks.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "autograd/ops/attention.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/concat.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/layer_norm.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/split.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/weighted_sum.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

// Each call throws an error that begins with its text.
void expect_refused(std::initializer_list<std::pair<std::function<void()>, const char*>> refusals) {
  for (const auto& [call, message] : refusals) {
    try {
      call();
      ADD_FAILURE() << "not refused: " << message;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with(message))
          << "message: " << error.what() << "\nexpected: " << message;
    }
  }
}

Tensor of_type(const Shape& shape, DType dtype) {
  const Tensor x = Tensor::empty(shape, dtype);
  fill(x, 0.0);
  return x;
}

Tensor ids(const Shape& shape) {
  return of_type(shape, DType::i32);
}

// x on a GPU, as far as a check can see.
Tensor on_gpu(const Tensor& x) {
  return Tensor::borrow(x.raw_data(), x.shape(), x.dtype(), {DeviceType::cuda, 0},
                        std::make_shared<Tensor>(x));
}

const auto kHalf = DType::bf16;

TEST(OpChecks, ElementwiseOps) {
  const Tensor x = zeros({2, 4}), half = zeros({2, 4}, kHalf), i = ids({2, 4});
  expect_refused({
      {[&] { exp(Tensor()); }, "exp: x is undefined"},
      {[&] { exp(i); }, "exp: x has dtype i32, expected a float"},
      {[&] { mul(i, i); }, "mul: a has dtype i32, expected a float"},
      {[&] { mul(x, Tensor()); }, "mul: b is undefined"},
      {[&] { mul(x, half); }, "mul: b has dtype bf16, expected f32"},
      {[&] { mul(x, on_gpu(x)); }, "mul: b is on cuda:0, expected cpu"},
      {[&] { cast(i, DType::f32); }, "cast: x has dtype i32, expected a float"},
      {[&] { cast(x, DType::i32); }, "cast: dtype is i32, expected a float"},
      {[&] { softmax(i, -1); }, "softmax: x has dtype i32, expected a float"},
      {[&] { log_softmax(i, -1); }, "log_softmax: x has dtype i32, expected a float"},
  });
}

TEST(OpChecks, Reductions) {
  const Tensor x = zeros({2, 4}), i = ids({2, 4}), none = zeros({2, 0});
  expect_refused({
      {[&] { sum(i, 0); }, "sum: x has dtype i32, expected a float"},
      {[&] { mean(i); }, "mean: x has dtype i32, expected a float"},
      {[&] { mean(none); }, "mean: x has shape (2, 0), expected at least one element to reduce"},
      {[&] { mean(none, 1); }, "mean: x has shape (2, 0), expected at least one element to reduce"},
      {[&] { sum_squares(i, 0); }, "sum_squares: x has dtype i32, expected a float"},
      {[&] { max(i, 0); }, "max: x has dtype i32, expected a float"},
      {[&] { max(none, -1); }, "max: x has shape (2, 0), expected at least one element to reduce"},
      {[&] { weighted_sum(i, x); }, "weighted_sum: x has dtype i32, expected a float"},
      {[&] { weighted_sum(zeros({}), x); },
       "weighted_sum: x has shape (), expected at least 1 dimension"},
      {[&] { weighted_sum(x, zeros({4}, kHalf)); }, "weighted_sum: w has dtype bf16, expected f32"},
      {[&] { weighted_sum(x, on_gpu(zeros({4}))); }, "weighted_sum: w is on cuda:0, expected cpu"},
      {[&] { weighted_sum(x, zeros({2})); }, "weighted_sum: w has shape (2), expected (4)"},
  });
  EXPECT_EQ(max(zeros({0, 4}), 1).values.shape(), Shape{0});
}

TEST(OpChecks, ShapeOps) {
  const Tensor x = zeros({2, 4}), half = zeros({2, 4}, kHalf), i = ids({2, 4});
  expect_refused({
      {[&] { concat({}, 0); }, "concat: no parts given"},
      {[&] {
         concat({i, i}, 0);
       },
       "concat: the first part has dtype i32, expected a float"},
      {[&] {
         concat({x, half}, 0);
       },
       "concat: a part has dtype bf16, expected f32"},
      {[&] {
         concat({x, on_gpu(x)}, 0);
       },
       "concat: a part is on cuda:0, expected cpu"},
      {[&] {
         concat({x, zeros({3, 5})}, 0);
       },
       "concat: a part has shape (3, 5), expected (3, 4)"},
      {[&] {
         concat({x, zeros({4})}, 0);
       },
       "concat: a part has shape (4), expected (2, 4)"},
      {[&] {
         split(x, {1, 2}, 1);
       },
       "split: the sizes add up to 3, expected the 4 of dimension 1"},
      {[&] { gather(i, 0, i); }, "gather: x has dtype i32, expected a float"},
      {[&] { gather(x, 0, Tensor()); }, "gather: index is undefined"},
      {[&] { gather(x, 0, x); }, "gather: index has dtype f32, expected i32, i64 or u16"},
      {[&] { gather(x, 0, on_gpu(i)); }, "gather: index is on cuda:0, expected cpu"},
      {[&] {
         gather(x, 0, ids({3, 3}));
       },
       "gather: index has shape (3, 3), expected (3, 4)"},
      {[&] { gather(x, 0, ids({4})); }, "gather: index has shape (4), expected (2, 4)"},
      {[&] { masked_fill(i, of_type({4}, DType::u8), 0.0); },
       "masked_fill: x has dtype i32, expected a float"},
      {[&] { masked_fill(x, on_gpu(of_type({4}, DType::u8)), 0.0); },
       "masked_fill: mask is on cuda:0, expected cpu"},
      {[&] { masked_fill(x, i, 0.0); }, "masked_fill: mask has dtype i32, expected bool or u8"},
      {[&] {
         masked_fill(x, of_type({3, 2, 4}, DType::u8), 0.0);
       },
       "masked_fill: mask has shape (3, 2, 4), expected one that broadcasts to x's (2, 4)"},
      {[&] { causal_mask(i); }, "causal_mask: x has dtype i32, expected a float"},
      {[&] { causal_mask(zeros({4})); },
       "causal_mask: x has shape (4), expected at least 2 dimensions"},
  });
  EXPECT_EQ(gather(x, 0, of_type({3, 4}, DType::u16)).shape(), (Shape{3, 4}));
}

TEST(OpChecks, Dropout) {
  const Tensor x = zeros({2, 4}), draw = make_draws(1);
  for (const auto& [op, name] :
       {std::pair{&dropout, "dropout"}, {&naive_dropout, "naive_dropout"}}) {
    const auto refused = [&, op = op, name = name](const Tensor& to, double p, const Tensor& by,
                                                   const char* rest) {
      expect_refused({{[&] { op(to, p, by, 0); }, cat(name, ": ", rest).c_str()}});
    };
    refused(ids({2}), 0.5, draw, "x has dtype i32, expected a float");
    refused(x, -0.1, draw, "p is -0.1, expected 0 <= p < 1");
    refused(x, 1.0, draw, "p is 1, expected 0 <= p < 1");
    refused(x, 0.5, {}, "draw is undefined");
    refused(x, 0.5, zeros({draw.numel()}), "draw has dtype f32, expected u8");
    refused(x, 0.5, of_type({3}, DType::u8), "draw has shape (3), expected (24)");
    refused(x, 0.5, on_gpu(draw), "draw is on cuda:0, expected cpu");
    EXPECT_EQ(op(x, 0.0, {}, 0).shape(), x.shape());  // nothing is drawn
  }
}

TEST(OpChecks, MatrixProducts) {
  const Tensor x = zeros({2, 4}), half = zeros({2, 4}, kHalf), i = ids({2, 4});
  const Tensor w = zeros({3, 4}), b = zeros({3}), one = zeros({4}), scalar = zeros({});
  expect_refused({
      {[&] { matmul(i, i); }, "matmul: a has dtype i32, expected a float"},
      {[&] { matmul(x, half); }, "matmul: b has dtype bf16, expected f32"},
      {[&] { matmul(x, on_gpu(x)); }, "matmul: b is on cuda:0, expected cpu"},
      {[&] { matmul(one, x); }, "matmul: a has shape (4), expected at least 2 dimensions"},
      {[&] { matmul(x, one); }, "matmul: b has shape (4), expected at least 2 dimensions"},
      {[&] { matmul(x, x); }, "matmul: b has 2 rows, expected a's 4 columns"},
      {[&] { matmul(x, x, true, true); }, "matmul: b transposed has 4 rows, expected a's 2"},
      {[&] {
         matmul(x, zeros({3, 2}), false, true);
       },
       "matmul: b transposed has 2 rows, expected a's 4 columns"},
      {[&] {
         matmul(zeros({2, 3, 4}), zeros({3, 4, 5}));
       },
       "matmul: b has shape (3, 4, 5), expected 2-D or the leading dimensions of a (2, 3, 4)"},

      {[&] { linear(i, w); }, "linear: x has dtype i32, expected a float"},
      {[&] { linear(scalar, w); }, "linear: x has shape (), expected at least 1 dimension"},
      {[&] { linear(x, Tensor()); }, "linear: w is undefined"},
      {[&] { linear(x, half); }, "linear: w has dtype bf16, expected f32"},
      {[&] { linear(x, on_gpu(w)); }, "linear: w is on cuda:0, expected cpu"},
      {[&] {
         linear(x, zeros({3, 5}));
       },
       "linear: w has shape (3, 5), expected (out, 4)"},
      {[&] { linear(x, one); }, "linear: w has shape (4), expected (out, 4)"},
      {[&] { linear(x, w, ids({3})); }, "linear: b has dtype i32, expected a float"},
      {[&] { linear(x, w, one); }, "linear: b has shape (4), expected (3)"},
      {[&] { linear(x, w, zeros({3}, kHalf)); }, "linear: b has dtype bf16, expected f32"},
      {[&] { linear(x, w, on_gpu(b)); }, "linear: b is on cuda:0, expected cpu"},

      {[&] { gelu_linear(i, {}, w, {}); }, "gelu_linear: x has dtype i32, expected a float"},
      {[&] { gelu_linear(scalar, {}, w, {}); }, "gelu_linear: x has shape (), expected at least 1"},
      {[&] { gelu_linear(x, {}, half, {}); }, "gelu_linear: w has dtype bf16, expected f32"},
      {[&] { gelu_linear(x, {}, on_gpu(w), {}); }, "gelu_linear: w is on cuda:0, expected cpu"},
      {[&] {
         gelu_linear(x, {}, zeros({3, 5}), {});
       },
       "gelu_linear: w has shape (3, 5), expected (out, 4) for x (2, 4)"},
      {[&] { gelu_linear(x, {}, one, {}); }, "gelu_linear: w has shape (4), expected (out, 4)"},
      {[&] { gelu_linear(x, b, w, b); }, "gelu_linear: x_bias has shape (3), expected (4)"},
      {[&] { gelu_linear(x, one, w, one); }, "gelu_linear: b has shape (4), expected (3)"},
      {[&] { gelu_linear(x, one, w, zeros({3}, kHalf)); }, "gelu_linear: b has dtype bf16"},
      {[&] { gelu_linear(x, one, w, on_gpu(b)); }, "gelu_linear: b is on cuda:0, expected cpu"},

      {[&] { swiglu(i); }, "swiglu: gate_up has dtype i32, expected a float"},
      {[&] { swiglu(scalar); }, "swiglu: gate_up has shape (), expected at least 1 dimension"},
      {[&] {
         swiglu(zeros({4, 3}));
       },
       "swiglu: gate_up has shape (4, 3), expected an even last"},
  });
  const Tensor down = zeros({3, 2}), made = zeros({2, 2});
  expect_refused({
      {[&] { swiglu_linear(i, down); }, "swiglu_linear: gate_up has dtype i32, expected a float"},
      {[&] { swiglu_linear(scalar, down); }, "swiglu_linear: gate_up has shape (), expected at"},
      {[&] { swiglu_linear(x, half); }, "swiglu_linear: w has dtype bf16, expected f32"},
      {[&] { swiglu_linear(x, on_gpu(down)); }, "swiglu_linear: w is on cuda:0, expected cpu"},
      {[&] { swiglu_linear(x, w); },
       "swiglu_linear: w has shape (3, 4) and gate_up (2, 4), expected (C, F) and (..., 2 F)"},
      {[&] {
         swiglu_linear(x, zeros({2, 2, 2}));
       },
       "swiglu_linear: w has shape (2, 2, 2) and"},
      {[&] { swiglu_linear(x, zeros({2})); }, "swiglu_linear: w has shape (2) and gate_up (2, 4)"},
      {[&] { swiglu_linear(x, down, down); }, "swiglu_linear: made has shape (3, 2), expected (2"},
      {[&] {
         swiglu_linear(x, down, zeros({2, 2}, kHalf));
       },
       "swiglu_linear: made has dtype bf16"},
      {[&] { swiglu_linear(x, down, on_gpu(made)); }, "swiglu_linear: made is on cuda:0, expected"},
  });
}

TEST(OpChecks, Embeddings) {
  const Tensor w = zeros({5, 4}), x = zeros({2, 3, 4}), i = ids({2, 3});
  expect_refused({
      {[&] {
         embedding(ids({5, 4}), i);
       },
       "embedding: w has dtype i32, expected a float"},
      {[&] { embedding(x, i); }, "embedding: w has shape (2, 3, 4), expected (V, C)"},
      {[&] { embedding(zeros({4}), i); }, "embedding: w has shape (4), expected (V, C)"},
      {[&] { embedding(w, Tensor()); }, "embedding: ids is undefined"},
      {[&] { embedding(w, w); }, "embedding: ids has dtype f32, expected i32, i64 or u16"},
      {[&] { embedding(w, on_gpu(i)); }, "embedding: ids is on cuda:0, expected cpu"},
      {[&] { embedding(w, i, kHalf); }, "embedding: cannot give bf16 from w of f32"},
      {[&] {
         embedding(zeros({5, 4}, kHalf), i, DType::f64);
       },
       "embedding: cannot give f64 from w of bf16"},

      {[&] {
         add_rows(ids({2, 4}), w, 0);
       },
       "add_rows: x has dtype i32, expected a float"},
      {[&] { add_rows(x, on_gpu(w), 0); }, "add_rows: w is on cuda:0, expected cpu"},
      {[&] { add_rows(zeros({4}), w, 0); }, "add_rows: x has shape (4), expected (..., T, C)"},
      {[&] {
         add_rows(x, zeros({5, 3}), 0);
       },
       "add_rows: w has shape (5, 3), expected (P, 4)"},
      {[&] {
         add_rows(x, zeros({1, 4, 4}), 0);
       },
       "add_rows: w has shape (1, 4, 4), expected (P"},
      {[&] { add_rows(x, zeros({4}), 0); }, "add_rows: w has shape (4), expected (P, 4)"},
      {[&] { add_rows(x, w, -1); }, "add_rows: rows -1 to 1 of w, which has 5"},
      {[&] { add_rows(x, w, 3); }, "add_rows: rows 3 to 5 of w, which has 5"},
  });
  EXPECT_EQ(add_rows(x, w, 2).shape(), x.shape());
}

TEST(OpChecks, Norms) {
  const Tensor x = zeros({2, 4}), half = zeros({2, 4}, kHalf), w = zeros({4}), scalar = zeros({});
  const Tensor wide = zeros({4}, DType::f64), half_w = zeros({4}, kHalf);
  expect_refused({
      {[&] { rms_norm(ids({4}), w, 1e-5); }, "rms_norm: x has dtype i32, expected a float"},
      {[&] { rms_norm(scalar, w, 1e-5); }, "rms_norm: x has shape (), expected at least 1"},
      {[&] { rms_norm(half, half_w, 1e-5); }, "rms_norm: w has dtype bf16, expected f32"},
      {[&] { rms_norm(x, on_gpu(w), 1e-5); }, "rms_norm: w is on cuda:0, expected cpu"},
      {[&] { rms_norm(x, zeros({3}), 1e-5); }, "rms_norm: w has shape (3), expected (4)"},
      {[&] { rms_norm(x, wide, 1e-5, DType::f64); },
       "rms_norm: cannot give f64 from x of f32, expected the same, or bf16 from f32"},
      {[&] { rms_norm(x, w, 1e-5, DType::f16); }, "rms_norm: cannot give f16 from x of f32"},
      {[&] { rms_norm(half, w, 1e-5, DType::f32); }, "rms_norm: cannot give f32 from x of bf16"},
      {[&] { layer_norm(x, w, half_w, 1e-5); }, "layer_norm: b has dtype bf16, expected f32"},
      {[&] { layer_norm(x, w, on_gpu(w), 1e-5); }, "layer_norm: b is on cuda:0, expected cpu"},
      {[&] { layer_norm(x, w, zeros({3}), 1e-5); }, "layer_norm: b has shape (3), expected (4)"},
      {[&] { add_rms_norm(x, on_gpu(x), w, 1e-5); }, "add_rms_norm: y is on cuda:0, expected cpu"},
      {[&] {
         add_rms_norm(x, zeros({1, 4}), w, 1e-5);
       },
       "add_rms_norm: y has shape (1, 4), expected (2, 4)"},
      {[&] { add_layer_norm(x, zeros({8}), w, w, 1e-5); },
       "add_layer_norm: y has shape (8), expected (2, 4)"},
  });
}

TEST(OpChecks, Losses) {
  const Tensor x = zeros({2, 4}), w = zeros({5, 4}), targets = ids({2});
  using Op = std::function<void(const Tensor&, const Tensor&)>;
  const std::pair<Op, const char*> ops[] = {
      {[](const auto& x, const auto& to) { cross_entropy(x, to); }, "cross_entropy"},
      {[](const auto& x, const auto& to) { naive_cross_entropy(x, to); }, "naive_cross_entropy"},
      {[](const auto& x, const auto& to) { naive_z_loss(x, to); }, "naive_z_loss"}};
  for (const auto& [op, name] : ops) {
    const auto refused = [&, op = op, name = name](const Tensor& logits, const Tensor& to,
                                                   const char* rest) {
      expect_refused({{[&] { op(logits, to); }, cat(name, ": ", rest).c_str()}});
    };
    refused(ids({2, 4}), targets, "logits has dtype i32, expected a float");
    refused(zeros({}), targets, "logits has shape (), expected at least 1 dimension");
    refused(x, ids({4}), "targets has shape (4), expected (2)");
    refused(x, zeros({2}), "targets has dtype f32, expected i32, i64 or u16");
    refused(x, on_gpu(targets), "targets is on cuda:0, expected cpu");
  }
  const auto refused = [](const Tensor& x, const Tensor& w, const Tensor& targets, int64_t chunk,
                          const char* rest) {
    expect_refused({{[&] { lm_head_cross_entropy(x, w, targets, -100, chunk); },
                     cat("lm_head_cross_entropy: ", rest).c_str()}});
  };
  refused(ids({2, 4}), w, targets, 8, "x has dtype i32, expected a float");
  refused(zeros({}), w, targets, 8, "x has shape (), expected at least 1 dimension");
  refused(x, zeros({5, 4}, kHalf), targets, 8, "w has dtype bf16, expected f32");
  refused(x, on_gpu(w), targets, 8, "w is on cuda:0, expected cpu");
  refused(x, zeros({5, 3}), targets, 8, "w has shape (5, 3), expected (V, 4)");
  refused(x, zeros({4}), targets, 8, "w has shape (4), expected (V, 4)");
  refused(x, w, ids({3}), 8, "targets has shape (3), expected (2)");
  refused(x, w, zeros({2}), 8, "targets has dtype f32, expected i32, i64 or u16");
  refused(x, w, on_gpu(targets), 8, "targets is on cuda:0, expected cpu");
  refused(x, w, targets, 0, "chunk_rows is 0, expected at least 1");
}

TEST(OpChecks, Rope) {
  const Tensor x = zeros({1, 2, 3, 4});
  const RopeTable table = make_rope_table(8, 4, 1e4);
  const RopeTable wide = make_rope_table(8, 4, 1e4, DType::f64);
  const RopeTable longer = make_rope_table(8, 8, 1e4), flat{zeros({2}), zeros({2})};
  const auto at = [&](int64_t first) { return rope(x, table, {}, first); };
  expect_refused({
      {[&] { make_rope_table(8, 3, 1e4); }, "rope table: D is 3, expected a positive even number"},
      {[&] { make_rope_table(8, 0, 1e4); }, "rope table: D is 0, expected a positive even number"},
      {[&] { make_rope_table(8, 4, 1e4, kHalf); },
       "rope table: dtype is bf16, expected f32 or f64"},
      {[&] {
         rope(ids({1, 2, 3, 4}), table);
       },
       "rope: x has dtype i32, expected a float"},
      {[&] {
         rope(zeros({2, 3, 4}), table);
       },
       "rope: x has shape (2, 3, 4), expected (B, T, H, D)"},
      {[&] {
         rope(zeros({1, 2, 3, 5}), table);
       },
       "rope: x has head_dim 5, expected an even number"},
      {[&] { rope(x, longer); }, "rope: the table has shape (8, 4), expected (positions, 2)"},
      {[&] { rope(x, flat); }, "rope: the table has shape (2), expected (positions, 2)"},
      {[&] {
         rope(x, {table.cos, longer.sin});
       },
       "rope: the table's sin has shape (8, 4), expected"},
      {[&] {
         rope(x, {table.cos, zeros({2, 8}).transpose(0, 1)});
       },
       "rope: the table is a strided view, expected a contiguous one"},
      {[&] { rope(x, wide); }, "rope: the table has dtype f64, expected f32"},
      {[&] {
         rope(x, {on_gpu(table.cos), table.sin});
       },
       "rope: the table is on cuda:0, expected"},
      {[&] { at(-1); }, "rope: positions -1 to 1, the table has 8"},
      {[&] { at(7); }, "rope: positions 7 to 9, the table has 8"},
      {[&] { rope(x, table, ids({3})); }, "rope: positions have shape (3), expected (2) or (1, 2)"},
      {[&] {
         rope(x, table, ids({2, 2}));
       },
       "rope: positions have shape (2, 2), expected (2)"},
      {[&] {
         rope(x, table, from_vector<int32_t>({7, 8}, {2}));
       },
       "rope: position 1 is 8, expected 0 to 7"},
      {[&] {
         rope(x, table, from_vector<int64_t>({-1, 0}, {2}));
       },
       "rope: position 0 is -1, expected 0 to 7"},
      {[&] {
         rope(x, table, from_vector<int64_t>({(int64_t{1} << 32) + 1, 0}, {2}));
       },
       "rope: position 0 is 2147483647, expected 0 to 7"},
      {[&] { rope(x, table, zeros({2})); }, "rope: positions has dtype f32, expected i32, i64 or"},
      {[&] { rope(x, table, on_gpu(ids({2}))); }, "rope: positions is on cuda:0, expected cpu"},
  });
  const Tensor large = zeros({4, 64, 8, 64});  // several threads
  std::vector<int32_t> positions(64, 7);
  positions[40] = 8;
  expect_refused({{[&] { rope(large, make_rope_table(8, 64, 1e4), from_vector(positions, {64})); },
                   "rope: position 40 is 8, expected 0 to 7"}});
  for (const int64_t first : {0, 6}) EXPECT_EQ(at(first).shape(), x.shape());
  for (const Shape& shape : {Shape{2}, Shape{1, 2}}) {
    EXPECT_EQ(rope(x, table, ids(shape)).shape(), x.shape());
  }
}

TEST(OpChecks, Attention) {
  const Tensor q = zeros({2, 4, 6, 8}), k = zeros({2, 5, 3, 8}), half = zeros({2, 5, 3, 8}, kHalf);
  for (const auto op : {&flash_attention, &naive_attention}) {
    const auto of = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return [=] { op(q, k, v, {}); };
    };
    expect_refused({
        {of(ids({2, 4, 6, 8}), k, k), "attention: q has dtype i32, expected a float"},
        {of(q, half, k), "attention: k has dtype bf16, expected f32"},
        {of(q, k, half), "attention: v has dtype bf16, expected f32"},
        {of(q, on_gpu(k), k), "attention: k is on cuda:0, expected cpu"},
        {of(q, k, on_gpu(k)), "attention: v is on cuda:0, expected cpu"},
        {of(zeros({4, 6, 8}), k, k), "attention: q has shape (4, 6, 8), expected (B, Tq, H, D)"},
        {of(q, zeros({1, 5, 3, 8}), k), "attention: k has shape (1, 5, 3, 8), expected (2, Tk, Hk"},
        {of(q, zeros({5, 3, 8}), k), "attention: k has shape (5, 3, 8), expected (2, Tk, Hk"},
        {of(q, zeros({2, 5, 3, 16}), k), "attention: k has shape (2, 5, 3, 16), expected (2, Tk"},
        {of(q, zeros({2, 5, 3, 8, 1}), k), "attention: k has shape (2, 5, 3, 8, 1), expected (2"},
        {of(q, k, q), "attention: v has shape (2, 4, 6, 8), expected (2, 5, 3, 8)"},
        {of(q, zeros({2, 5, 4, 8}), zeros({2, 5, 4, 8})),
         "attention: k has 4 heads, expected 6 or a divisor of q's 6"},
        {of(q, zeros({2, 5, 0, 8}), zeros({2, 5, 0, 8})), "attention: k has 0 heads, expected 6"},
        {of(zeros({2, 4, 0, 8}), zeros({2, 5, 0, 8}), zeros({2, 5, 0, 8})),
         "attention: k has 0 heads, expected at least 1"},
        {[&] { op(q, k, k, {.scale = -0.5}); }, "attention: scale is -0.5, expected more than 0"},
    });
  }
}

TEST(OpChecks, AttentionOnJoinedHeads) {
  constexpr int64_t H = 2, Hk = 1, D = 8;
  const Tensor qkv = zeros({1, 3, (H + 2 * Hk) * D});
  const RopeTable table = make_rope_table(3, D, 1e4), longer = make_rope_table(3, 2 * D, 1e4);
  const auto rotated = [&](const Tensor& x, const RopeTable& by, int64_t head_dim = 8) {
    return [=] { rope_attention(x, H, Hk, head_dim, by); };
  };
  const auto plain = [&](const Tensor& x) { return [=] { qkv_attention(x, H, Hk, D); }; };
  expect_refused({
      {plain(ids({1, 3, 32})), "qkv_attention: qkv has dtype i32, expected a float"},
      {plain(zeros({3, 32})), "qkv_attention: qkv has shape (3, 32), expected (B, T, 32)"},
      {plain(zeros({1, 3, 24})), "qkv_attention: qkv has shape (1, 3, 24), expected (B, T, 32)"},
      {plain(zeros({1, 3, 33})), "qkv_attention: qkv has shape (1, 3, 33), expected (B, T, 32)"},
      {rotated(zeros({3, 32}), table),
       "rope_attention: qkv has shape (3, 32), expected (B, T, 32)"},
      {rotated(zeros({1, 32, 3}).transpose(1, 2), table), "rope_attention: qkv is a leaf or not"},
      {rotated(zeros({1, 3, 36}), {zeros({3, 4}), zeros({3, 4})}, 9),
       "rope_attention: x has head_dim 9, expected an even number"},
      {rotated(qkv, longer), "rope_attention: the table has shape (3, 8), expected (positions, 4)"},
      {rotated(qkv, make_rope_table(3, D / 2, 1e4)),
       "rope_attention: the table has shape (3, 2), expected (positions, 4)"},
      {rotated(qkv, {table.cos, longer.sin}),
       "rope_attention: the table's sin has shape (3, 8), expected (3, 4)"},
      {rotated(qkv, {zeros({4, 3}).transpose(0, 1), table.sin}),
       "rope_attention: the table is a strided view, expected a contiguous one"},
      {rotated(qkv, make_rope_table(2, D, 1e4)),
       "rope_attention: the table has shape (2, 4), expected (at least 3, 4)"},
      {rotated(qkv, {zeros({4}), zeros({4})}), "rope_attention: the table has shape (4), expected"},
      {rotated(qkv, make_rope_table(3, D, 1e4, DType::f64)),
       "rope_attention: the table has dtype f64, expected f32"},
      {rotated(qkv, {on_gpu(table.cos), table.sin}),
       "rope_attention: the table is on cuda:0, expected cpu"},
  });
  rotated(qkv, table)();
}

}  // namespace
}  // namespace quern
