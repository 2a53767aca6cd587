// Arguments that ops refuse, one by one where a check joins several conditions.
#include <gtest/gtest.h>

#include "autograd/gradcheck.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/concat.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/mask.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/matrix_product.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/rms_norm.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/sum_target.h"
#include "autograd/ops/swiglu.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

TEST(OpErrors, UndefinedTensors) {
  const Tensor x = zeros({2, 3});
  expect_error([&] { exp(Variable()); }, {"exp: x is undefined"});
  expect_error([&] { linear(x, Variable()); }, {"linear: w is undefined"});
  expect_error([&] { gather(x, 0, Tensor()); }, {"gather: index is undefined"});
}

TEST(OpErrors, Embedding) {
  const Tensor w = zeros({4, 3}), ids = zeros({2}, DType::i32);
  expect_error([&] { embedding(zeros({4}), ids); },
               {"embedding: w has shape (4), expected (V, C)"});
  expect_error([&] { embedding(w, ids, DType::bf16); },
               {"embedding: cannot give bf16 from w of f32"});
  expect_error(
      [&] {
        embedding(zeros({4, 3}, DType::bf16), ids, DType::f64);
      },
      {"embedding: cannot give f64 from w of bf16"});
}

TEST(OpErrors, AddRows) {
  const Tensor x = zeros({2, 3, 4}), w = zeros({5, 4});
  expect_error([&] { add_rows(zeros({4}), w, 0); }, {"add_rows: x has shape (4)"});
  expect_error([&] { add_rows(x, zeros({4}), 0); }, {"add_rows: w has shape (4), expected (P, 4)"});
  expect_error([&] { add_rows(x, zeros({5, 3}), 0); }, {"add_rows: w has shape (5, 3)"});
  expect_error([&] { add_rows(x, w, -1); }, {"add_rows: rows -1 to 1"});
  expect_error([&] { add_rows(x, w, 3); }, {"add_rows: rows 3 to 5 of w, which has 5"});
}

TEST(OpErrors, Dropout) {
  const Tensor x = zeros({2}), draw = next_draw(make_draws(1));
  expect_error([&] { dropout(x, -0.1, draw, 0); }, {"dropout: p is -0.1, expected 0 <= p < 1"});
  expect_error([&] { naive_dropout(x, 1.0, draw, 0); }, {"naive_dropout: p is 1"});
  expect_error([&] { dropout(x, 0.5, x, 0); }, {"dropout: draw has dtype f32, expected u8"});
}

TEST(OpErrors, Casts) {
  expect_error([] { cast(zeros({2}), DType::i32); }, {"cast: dtype is i32, expected a float"});
}

TEST(OpErrors, RopeTables) {
  expect_error([] { make_rope_table(4, 0, 100.0); }, {"D is 0, expected a positive even number"});
  expect_error([] { make_rope_table(4, 3, 100.0); }, {"rope table: D is 3"});
  expect_error([] { make_rope_table(4, 8, 100.0, DType::bf16); }, {"rope table: dtype is bf16"});
}

TEST(OpErrors, Rope) {
  const RopeTable table = make_rope_table(8, 16, 100.0);
  const Tensor x = zeros({2, 4, 1, 16});
  expect_error([&] { rope(zeros({2, 4, 16}), table); }, {"rope: x has shape (2, 4, 16)"});
  expect_error([&] { rope(zeros({2, 4, 1, 15}), table); }, {"rope: x has head_dim 15"});
  expect_error(
      [&] {
        rope(zeros({2, 4, 1, 8}), table);
      },
      {"rope: the table has shape (8, 8), expected (positions, 4)"});
  const RopeTable flat{zeros({8}), zeros({8})};
  expect_error([&] { rope(x, flat); }, {"rope: the table has shape (8), expected"});
  expect_error([&] { rope(x, table, {}, -1); }, {"rope: positions -1 to 3"});
  expect_error([&] { rope(x, table, zeros({3}, DType::i32)); },
               {"rope: positions have shape (3), expected (4) or (2, 4)"});
}

TEST(OpErrors, RopeAttention) {
  constexpr int64_t D = 8;
  const RopeTable table = make_rope_table(4, D, 100.0);
  const auto attend = [](const Tensor& qkv, const RopeTable& with, int64_t head_dim) {
    return [=] { rope_attention(qkv, 1, 1, head_dim, with); };
  };
  expect_error(attend(zeros({1, 4}), table, D), {"qkv has shape (1, 4), expected (B, T, 24)"});
  expect_error(attend(zeros({1, 4, 25}), table, D), {"qkv has shape (1, 4, 25)"});
  expect_error(attend(zeros({1, 24, 4}).transpose(1, 2), table, D), {"not contiguous"});
  expect_error(attend(zeros({1, 5, 24}), table, D),
               {"the table has shape (4, 4)", "at least 5, 4"});
  expect_error(attend(zeros({1, 4, 48}), table, 16),
               {"the table has shape (4, 4)", "at least 4, 8"});
  expect_error(attend(zeros({1, 4, 27}), table, 9),
               {"the table has shape (4, 4)", "at least 4, 4"});
  expect_error(attend(zeros({1, 4, 24}), {zeros({4}), zeros({4})}, D), {"the table has shape (4)"});
}

TEST(OpErrors, Attention) {
  const Tensor q = zeros({2, 4, 2, 16});
  const auto attend = [&](const Tensor& k) { return [&q, k] { naive_attention(q, k, k); }; };
  expect_error([&] { naive_attention(zeros({4, 2, 16}), q, q); }, {"attention: q has shape"});
  expect_error(attend(zeros({4, 2, 16})), {"attention: k has shape (4, 2, 16)"});
  expect_error(attend(zeros({1, 4, 2, 16})), {"attention: k has shape (1, 4, 2, 16)"});
  expect_error(attend(zeros({2, 4, 2, 8})), {"attention: k has shape (2, 4, 2, 8)"});
  expect_error(attend(zeros({2, 4, 0, 16})), {"attention: k has 0 heads"});
}

TEST(OpErrors, Weights) {
  const Tensor x = zeros({2, 3}), flat = zeros({3});
  expect_error([&] { linear(x, flat); }, {"linear: w has shape (3), expected (out, 3)"});
  expect_error([&] { gelu_linear(x, {}, flat, {}); }, {"gelu_linear: w has shape (3)"});
  expect_error([&] { swiglu_linear(zeros({2, 6}), flat); }, {"swiglu_linear: w has shape (3)"});
  const Tensor targets = zeros({2}, DType::i32);
  const auto head = [&](const Tensor& w, int64_t chunk_rows) {
    return [=] { lm_head_cross_entropy(x, w, targets, kIgnoreIndex, chunk_rows); };
  };
  expect_error(head(flat, 1), {"w has shape (3), expected (V, 3)"});
  expect_error(head(zeros({5, 2}), 1), {"w has shape (5, 2), expected (V, 3)"});
  expect_error(head(zeros({5, 3}), 0), {"chunk_rows is 0, expected at least 1"});
}

TEST(OpErrors, Masks) {
  const Tensor x = zeros({2, 3});
  expect_error(
      [&] {
        masked_fill(x, zeros({4, 2, 3}, DType::u8), 0.0);
      },
      {"masked_fill: mask has shape (4, 2, 3)", "broadcasts to x's (2, 3)"});
}

TEST(OpErrors, DtypesOfSums) {
  const Tensor x = ones({2, 3}), half = ones({2, 3}, DType::bf16);
  expect_error([&] { detail::sum_to(x, {3}, DType::f64); }, {"sum: cannot give f64 from x of f32"});
  expect_error([&] { detail::sum_to(half, {3}, DType::f64); }, {"cannot give f64 from x of bf16"});
  const Tensor wide = zeros({2, 2}, DType::f64);
  expect_error([&] { detail::matrix_product(wide, x, false, x, true); },
               {"matmul: cannot accumulate products of f32 in f64"});
  expect_error([&] { detail::matrix_product(wide, half, false, half, true); },
               {"matmul: cannot accumulate products of bf16 in f64"});
  expect_error([&] { rms_norm(x, ones({3}), 1e-5, DType::f16); },
               {"rms_norm: cannot give f16 from x of f32, expected the same, or bf16 from f32"});
  expect_error([&] { rms_norm(half, ones({3}), 1e-5, DType::f32); },
               {"rms_norm: cannot give f32 from x of bf16"});
}

// A gradient whose dtype does not fit the buffer of its leaf.
TEST(OpErrors, DtypesOfGradients) {
  const auto leaf = [](const Tensor& value, DType buffer, const char* name) {
    const auto store = std::make_shared<Leaf>();
    store->name = name;
    store->grad = zeros(value.shape(), buffer);
    store->has_buffer = true;
    return Variable::leaf(value, store);
  };
  const Variable x = leaf(ones({2}), DType::bf16, "x");
  expect_error([&] { backward(scale(x, 2.0), ones({2})); },
               {"gradient of x: cannot add f32 to a buffer of bf16"});
  const Variable w = leaf(ones({3}), DType::bf16, "w");
  const auto pass = [&] { backward(rms_norm(ones({2, 3}), w, 1e-5), ones({2, 3})); };
  pass();
  expect_error(pass, {"gradient: cannot add f32 to a buffer of bf16"});
}

TEST(OpErrors, AGradientOfAnotherDtype) {
  const auto wrong = [](const Variable& x) {
    return record("wrong", ones({2}), {x}, [](Gradients& g) { g.add(0, ones({2}, DType::f64)); });
  };
  const auto refused = [&](const Variable& x) {
    expect_error([&] { backward(wrong(x), ones({2})); }, {"wrong: the gradient of input 0", "f64"});
  };
  refused(Variable::leaf(ones({2})));
  refused(scale(Variable::leaf(ones({2})), 2.0));
  const auto store = std::make_shared<Leaf>();
  store->name = "x";
  store->grad = zeros({2});
  store->has_buffer = true;
  refused(Variable::leaf(ones({2}, DType::bf16), store));
  const Variable half = Variable::leaf(ones({2}, DType::f16), store);
  expect_error([&] { backward(scale(half, 2.0), ones({2}, DType::f16)); },
               {"gradient of x: cannot add f16 to a buffer of f32"});
}

TEST(OpErrors, Gradcheck) {
  const auto twice = [](const std::vector<Variable>& in) { return scale(in[0], 2.0); };
  expect_error([&] { gradcheck(twice, {zeros({2})}); }, {"gradcheck: an input is f32 on cpu"});
}

TEST(OpErrors, AnotherDevice) {
  float memory[6] = {};
  const Tensor elsewhere = Tensor::borrow(memory, {2, 3}, DType::f32, Device{DeviceType::cuda, 0});
  expect_error([&] { linear(zeros({2, 3}), elsewhere); }, {"linear: w is on cuda:0, expected cpu"});
  double wide[2] = {};
  const Tensor x = Tensor::borrow(wide, {2}, DType::f64, Device{DeviceType::cuda, 0});
  const auto same = [](const std::vector<Variable>& in) { return in[0]; };
  expect_error([&] { gradcheck(same, {x}); }, {"gradcheck: an input is f64 on cuda:0"});
}

TEST(OpErrors, TooFewDimensions) {
  expect_error([] { linear(zeros({}), zeros({2, 3})); }, {"expected at least 1 dimension"});
  expect_error([] { concat({zeros({2, 3}), zeros({3})}, 0); }, {"a part has shape (3)"});
  expect_error(
      [] {
        matmul(zeros({2, 3}), zeros({4, 2}), false, true);
      },
      {"matmul: b transposed has 2 rows, expected a's 3 columns"});
}

}  // namespace
}  // namespace quern
