// Ops of which only some inputs need a gradient, and the tape's rarer paths.
#include <gtest/gtest.h>

#include "autograd/checkpoint.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/lm_head.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rope.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/view.h"
#include "autograd/ops/weighted_sum.h"
#include "support/files.h"
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;

Tensor some(const Shape& shape, int seed) {
  return values(shape, seed).to(DType::f32);
}

Floats floats(const Tensor& x) {
  return x.to_vector<float>();
}

using Inputs = std::vector<Variable>;
using Op = std::function<Variable(const Inputs&)>;

// The gradient of each input is the same whether or not the others need one.
void expect_alone_as_together(const Op& op, const std::vector<Tensor>& inputs) {
  const auto gradients = [&](const std::vector<size_t>& wanted) {
    Inputs variables(inputs.begin(), inputs.end());
    for (const size_t i : wanted) variables[i] = Variable::leaf(inputs[i]);
    backward(sum(op(variables)));
    std::vector<Floats> grads;
    for (const size_t i : wanted) grads.push_back(floats(variables[i].grad()));
    return grads;
  };
  std::vector<size_t> all(inputs.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<Floats> together = gradients(all);
  for (const size_t i : all) EXPECT_EQ(gradients({i})[0], together[i]) << "input " << i;
}

TEST(PartialGradients, EachInputAlone) {
  const Tensor x = some({4, 6}, 1), w = some({5, 6}, 2), b = some({5}, 3), row = some({6}, 4);
  expect_alone_as_together([](const Inputs& in) { return matmul(in[0], in[1], false, true); },
                           {x, w});
  expect_alone_as_together([](const Inputs& in) { return linear(in[0], in[1], in[2]); }, {x, w, b});
  expect_alone_as_together([](const Inputs& in) { return weighted_sum(in[0], in[1]); }, {x, row});
  expect_alone_as_together([](const Inputs& in) { return add_rows(in[0], in[1], 1); },
                           {x, some({5, 6}, 5)});
  for (const ActivationOutput output : {ActivationOutput::rebuilt, ActivationOutput::kept}) {
    expect_alone_as_together(
        [&](const Inputs& in) { return gelu_linear(in[0], in[1], in[2], in[3], output); },
        {x, row, w, b});
    expect_alone_as_together(
        [&](const Inputs& in) { return swiglu_linear(in[0], in[1], {}, output); },
        {x, some({5, 3}, 6)});
  }
  const Tensor targets = from_vector(std::vector<int32_t>{0, 4, 2, kIgnoreIndex}, {4});
  for (const double z_loss : {0.0, 0.1}) {
    expect_alone_as_together(
        [&](const Inputs& in) {
          LmHeadOptions options;
          options.chunk_rows = 3;
          options.z_loss = z_loss;
          return lm_head_loss(in[0], in[1], targets, options).loss;
        },
        {x, w});
  }
}

TEST(PartialGradients, AHeadOfConstantsHasNone) {
  const Tensor targets = from_vector(std::vector<int32_t>{0, 4}, {2});
  for (const double z_loss : {0.0, 0.1}) {
    LmHeadOptions options;
    options.z_loss = z_loss;
    EXPECT_FALSE(
        lm_head_loss(some({2, 6}, 1), some({5, 6}, 2), targets, options).loss.requires_grad());
  }
}

TEST(PartialGradients, ABiasMayBeComputed) {
  const Variable b = Variable::leaf(ones({5}));
  backward(sum(linear(some({4, 6}, 1), some({5, 6}, 2), scale(b, 3.0))));
  EXPECT_EQ(floats(b.grad()), Floats(5, 12.0f));
}

// A head's weight whose buffer has the dtype of the sums takes its gradient in the forward.
TEST(PartialGradients, AHeadWithABufferNeedsNoGradientOfItsInput) {
  const Tensor x = some({4, 6}, 1), w = some({5, 6}, 2);
  const Tensor targets = from_vector(std::vector<int32_t>{0, 4, 2, 1}, {4});
  const Variable plain = Variable::leaf(w);
  backward(lm_head_cross_entropy(x, plain, targets));
  for (const DType buffer : {DType::f32, DType::f64}) {
    const auto store = std::make_shared<Leaf>();
    store->grad = zeros(w.shape(), buffer);
    store->has_buffer = true;
    const Variable loss = lm_head_cross_entropy(x, Variable::leaf(w, store), targets);
    if (buffer == DType::f64) {  // no op adds FP32 to FP64
      expect_error([&] { backward(loss); }, {"cannot add f32 to a buffer of f64"});
      continue;
    }
    backward(loss);
    EXPECT_EQ(floats(store->grad), floats(plain.grad()));
  }
}

TEST(PartialGradients, BuffersOfDoubles) {
  const auto store = std::make_shared<Leaf>();
  store->grad = zeros({2}, DType::f64);
  store->has_buffer = true;
  const Variable x = Variable::leaf(ones({2}, DType::f64), store);
  for (int pass = 1; pass <= 2; ++pass) {
    backward(sum(scale(x, 3.0)));
    EXPECT_EQ(store->grad.to_vector<double>(), std::vector<double>(2, 3.0 * pass));
  }
}

TEST(PartialGradients, AFirstGradientWithStridesIsCopiedBeforeTheNextIsAdded) {
  const Variable x = Variable::leaf(some({2, 3}, 1));
  const Tensor c = some({3, 2}, 2), d = some({3, 2}, 3);
  const Variable y = scale(x, 2.0);
  backward(add(sum(mul(transpose(y, 0, 1), c)), sum(mul(transpose(y, 0, 1), d))));
  const Tensor expected = scale(add(c, d), 2.0).value().transpose(0, 1);
  EXPECT_EQ(floats(x.grad()), floats(expected));
}

TEST(PartialGradients, ProductsOfNothingAddTheBias) {
  const Variable x = Variable::leaf(zeros({2, 0})), w = Variable::leaf(zeros({3, 0}));
  const Variable b = Variable::leaf(from_vector(Floats{1, 2, 3}, {3}));
  const Variable y = linear(x, w, b);
  EXPECT_EQ(floats(y.value()), (Floats{1, 2, 3, 1, 2, 3}));
  backward(sum(y));
  EXPECT_EQ(floats(b.grad()), (Floats{2, 2, 2}));
  EXPECT_EQ(x.grad().numel() + w.grad().numel(), 0);
}

// Operands whose matrices are stored transposed, with one column.
TEST(PartialGradients, AProductWithOneColumnOfATransposedMatrix) {
  const Tensor a = some({3, 4}, 1), column = some({4, 6}, 2).transpose(0, 1).slice(0, 2, 3);
  EXPECT_EQ(floats(matmul(a, column, false, true).value()),
            floats(matmul(a, column.clone(), false, true).value()));
}

TEST(PartialGradients, HeadsWithStridesArePacked) {
  const Tensor q = some({1, 4, 16, 2}, 1).transpose(2, 3);
  ASSERT_NE(q.strides()[3], 1);
  const Tensor packed = q.contiguous();
  EXPECT_EQ(floats(flash_attention(q, q, q).value()),
            floats(flash_attention(packed, packed, packed).value()));
  const RopeTable table = make_rope_table(4, 16, 100.0);
  EXPECT_EQ(floats(rope(q, table).value()), floats(rope(packed, table).value()));
  const Tensor positions = from_vector(std::vector<int32_t>{0, 1, 2, 3}, {1, 4});
  EXPECT_EQ(floats(rope(q, table, positions).value()), floats(rope(packed, table).value()));
}

// The kernels of gate and up take aligned BF16 on a GPU; all else goes by single products.
TEST(PartialGradients, GateAndUpOfAnyLayout) {
  const Device gpu{DeviceType::cuda, 0};
  const auto run = [](const Tensor& x, const Tensor& w) {
    EXPECT_EQ(gate_up_linear(x, w).gate_up.dim(-1), w.dim(0));
  };
  run(some({4, 6}, 1), some({5, 6}, 2));  // odd: no half is a gate
  Context context(gpu, kernels::cuda::kHopper);
  const ContextScope scope(context);
  const auto make = [&](const Shape& shape) { return Tensor::empty(shape, DType::bf16, gpu); };
  const Tensor x = make({4096, 1024}), w = make({8192, 1024});
  run(x, w);
  run(x.slice(0, 0, 3), w);                    // too small
  run(make({1024, 4096}).transpose(0, 1), w);  // not contiguous
  run(make({4097, 1025}).slice(1, 1, 1025).reshape({-1}).slice(0, 1, 1025).reshape({1, 1024}), w);
  const Variable gate_up = Variable::leaf(make({4096, 8192})),
                 down = Variable::leaf(make({1024, 4096}));
  backward(swiglu_linear(gate_up, down), make({4096, 1024}));
  EXPECT_EQ(gate_up.grad().shape(), gate_up.shape());
}

TEST(PartialGradients, ACheckpointOfWhatNeedsNone) {
  const Variable x = Variable::leaf(ones({2})), unused = Variable::leaf(ones({2}));
  const Tensor constant = ones({2});
  const std::vector<Variable> y = checkpoint(
      [&](const std::vector<Variable>& in) {
        return std::vector{scale(in[0], 2.0), scale(Variable(constant), 3.0)};
      },
      std::vector{x, unused});
  backward(y, {ones({2}), ones({2})});
  EXPECT_EQ(floats(x.grad()), (Floats{2, 2}));
  EXPECT_THROW(unused.grad(), Error);
}

TEST(Tape, RootsAndTheirGradientsMatch) {
  const Variable x = Variable::leaf(ones({2}));
  expect_error([&] { backward(std::vector{exp(x)}, {}); }, {"backward: 1 roots and 0 gradients"});
  expect_error([&] { backward(exp(x), ones({2}, DType::f64)); },
               {"dtype f64, the root (2) and f32"});
}

TEST(Tape, ARootOfConstantsIsAConstant) {
  const Variable loss = record_root("loss", ones({}), {ones({2})}, [](Gradients&) {});
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_EQ(add(loss, loss).value().item(), 2.0);
}

// A split part that nothing uses leaves the leaves behind the other op without a gradient.
TEST(Tape, LeavesWithoutAGradientAreReadyToo) {
  int ready = 0;
  const Variable x = Variable::leaf(ones({2})), y = Variable::leaf(ones({2}));
  y.leaf_store()->on_ready = [&](Leaf&) { ++ready; };
  const Variable both = record("first_only", ones({2}), {scale(x, 2.0), scale(y, 2.0)},
                               [](Gradients& g) { g.add(0, g.output()); });
  backward(sum(both));
  EXPECT_EQ(floats(x.grad()), (Floats{2, 2}));
  EXPECT_EQ(ready, 1);
  const Variable silent = Variable::leaf(ones({2}));
  backward(sum(record("first_only", ones({2}), {scale(x, 2.0), scale(silent, 2.0)},
                      [](Gradients& g) { g.add(0, g.output()); })));
  EXPECT_THROW(silent.grad(), Error);
}

}  // namespace
}  // namespace quern
