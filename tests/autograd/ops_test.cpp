// Properties that gradient checks do not cover: dtypes, memory, rejected arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/attention.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/cast.h"
#include "autograd/ops/concat.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/gather.h"
#include "autograd/ops/gelu_linear.h"
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
#include "support/op_cases.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;

Tensor floats(const Floats& x, const Shape& shape) {
  return from_vector(x, shape);
}

TEST(Ops, KnownValues) {
  const Tensor x = floats({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(matmul(x, x).value().to_vector<float>(), (Floats{7, 10, 15, 22}));
  EXPECT_EQ(linear(x, x).value().to_vector<float>(), (Floats{5, 11, 11, 25}));
  EXPECT_EQ(sub(x, floats({1, 2}, {2, 1})).value().to_vector<float>(), (Floats{0, 1, 1, 2}));
  EXPECT_EQ(sum(x, 0).value().to_vector<float>(), (Floats{4, 6}));
  EXPECT_EQ(mean(x).value().item(), 2.5);
  EXPECT_EQ(weighted_sum(x, floats({1, 10}, {2})).value().to_vector<float>(), (Floats{21, 43}));
  const MaxResult most = max(floats({1, 5, 5, 2}, {4}), 0);
  EXPECT_EQ(most.values.value().item(), 5.0);
  EXPECT_EQ(most.indices.item(), 1.0) << "the first of equals";
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(causal_mask(x).value().to_vector<float>(), (Floats{1, -inf, 3, 4}));
  EXPECT_EQ(softmax(floats({-inf, -inf}, {1, 2})).value().to_vector<float>(), (Floats{0, 0}));
}

TEST(Ops, LossOfUniformLogitsIsLogV) {
  const Tensor targets = from_vector(std::vector<int32_t>{0, kIgnoreIndex, 3}, {3});
  const double loss = cross_entropy(zeros({3, 8}), targets).value().item();
  EXPECT_NEAR(loss, std::log(8.0), 1e-6);  // one FP32 rounding of 2.08
}

TEST(Ops, CastRoundsAndItsGradientComesBack) {
  const Variable x =
      Variable::leaf(floats({1.00390625f, 3.0f}, {2}));  // 1 + 2^-8: between two bf16
  const Variable y = cast(x, DType::bf16);
  EXPECT_EQ(y.value().to(DType::f32).to_vector<float>(), (Floats{1.0f, 3.0f}));
  backward(y, ones({2}, DType::bf16));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{1.0f, 1.0f}));
}

TEST(Ops, ProductsOfBf16AccumulateInAnFp32Buffer) {
  const auto store = std::make_shared<Leaf>();
  store->grad = full({1, 1}, 1000.0);
  store->has_buffer = true;
  store->fresh = false;
  const Variable w = Variable::leaf(full({1, 1}, 1.0, DType::bf16), store);
  const Tensor x = full({3, 1}, 0.0078125, DType::bf16);  // 2^-7: lost in a bf16 sum with 1000
  for (int pass = 0; pass < 2; ++pass) backward(sum(linear(x, w)), {});
  EXPECT_EQ(store->grad.item(), 1000.0 + 6 * 0.0078125);
}

TEST(Ops, EmbeddingOfBf16GivesFp32AndSumsItsGradientInFp32) {
  const auto store = std::make_shared<Leaf>();
  store->grad = zeros({3, 1});
  store->has_buffer = true;
  const Variable w = Variable::leaf(ones({3, 1}, DType::bf16), store);
  const Tensor ids = from_vector(std::vector<int32_t>{2, 2, 0}, {3});
  const Variable y = embedding(w, ids, DType::f32);
  EXPECT_EQ(y.dtype(), DType::f32);
  backward(y, floats({1000.0f, 0.0078125f, 1.0f}, {3, 1}));
  EXPECT_EQ(store->grad.to_vector<float>(), (Floats{1.0f, 0.0f, 1000.0078125f}));
}

int64_t peak_of(const std::function<void()>& work) {
  const auto& allocator = Context::current().allocator(kCpu);
  allocator->reset_peak();
  const int64_t before = allocator->stats().allocated;
  work();
  return allocator->stats().peak_allocated - before;
}

// Products by Eigen, whose memory the allocator does not see: a peak then holds tensors alone.
class ProductsWithoutScratch {
 public:
  ProductsWithoutScratch() { options().fp32_products = Fp32Products::fma; }
  ~ProductsWithoutScratch() { options().fp32_products = before_; }
  ProductsWithoutScratch(const ProductsWithoutScratch&) = delete;
  ProductsWithoutScratch& operator=(const ProductsWithoutScratch&) = delete;

 private:
  static OpOptions& options() { return Context::current().options; }
  const Fp32Products before_ = options().fp32_products;
};

TEST(Ops, CausalMaskTakesOverAGradientThatNobodyElseSees) {
  const Shape shape{64, 64};
  const int64_t bytes = shape.numel() * 4;
  const Variable x = Variable::leaf(uniform(shape, -1, 1));
  const Variable y = scale(causal_mask(x, 0.0), 2.0);
  const Tensor dy = ones(shape);
  EXPECT_EQ(peak_of([&] { backward(y, dy); }), bytes);  // scale's; the mask is put into it
  EXPECT_EQ(x.grad().to_vector<float>(),
            causal_mask(full(shape, 2.0), 0.0).value().to_vector<float>());
  EXPECT_EQ(dy.to_vector<float>(), Floats(64 * 64, 1.0f));

  const Variable seen = Variable::leaf(uniform(shape, -1, 1));
  backward(causal_mask(seen, 0.0), dy);  // the caller's tensor stays as it is
  EXPECT_EQ(dy.to_vector<float>(), Floats(64 * 64, 1.0f));
}

TEST(Ops, LmHeadNeverHoldsTheLogits) {
  const ProductsWithoutScratch no_scratch;
  constexpr int64_t N = 512, C = 8, V = 1000, kChunk = 64;
  const Variable x = Variable::leaf(uniform({N, C}, -1, 1));
  const Variable w = Variable::leaf(uniform({V, C}, -1, 1));
  const Tensor targets = random_integers({N}, V);
  const int64_t peak =
      peak_of([&] { backward(lm_head_cross_entropy(x, w, targets, kIgnoreIndex, kChunk)); });
  const int64_t chunk = kChunk * V * 4, parameters = (N + V) * C * 4;
  EXPECT_LT(peak, chunk + 4 * parameters);
  EXPECT_LT(peak, N * V * 4 / 3);
}

// Forward and backward of y = linear(op(x), w) with op's output kept or recomputed.
struct Rebuilt {
  int64_t saved;  // bytes held between forward and backward
  Floats dx, dw;
};
Rebuilt through_linear(const std::function<Variable(const Variable&)>& op, const Tensor& input,
                       const Tensor& weight, bool twice) {
  const Variable x = Variable::leaf(input), w = Variable::leaf(weight);
  const auto& allocator = Context::current().allocator(kCpu);
  const int64_t before = allocator->stats().allocated;
  Variable y;
  {
    const Variable h = op(x);
    y = linear(h, w);
    if (twice) y = add(y, linear(h, w));
  }
  const int64_t saved = allocator->stats().allocated - before;
  const Tensor dy = y.value();
  backward(y, dy);
  return {saved, x.grad().to_vector<float>(), w.grad().to_vector<float>()};
}

TEST(Ops, NormAndActivationOutputsAreComputedAgainWithTheSameBits) {
  constexpr int64_t N = 64, C = 32;
  const Tensor gain = uniform({C}, 0.5, 1.5), other = uniform({N, C}, -1, 1);
  const std::vector<std::pair<int64_t, std::function<Variable(const Variable&)>>> ops{
      {C, [&](const Variable& x) { return rms_norm(x, gain, 1e-5); }},
      {C, [&](const Variable& x) { return add_rms_norm(x, other, gain, 1e-5).second; }},
      {2 * C, [](const Variable& x) { return swiglu(x); }}};
  for (const auto& [width, op] : ops) {
    const Tensor x = uniform({N, width}, -1, 1), w = uniform({7, C}, -1, 1);
    for (const bool twice : {false, true}) {
      const auto kept_op = [&](const Variable& in) { return op(in).without_recipe(); };
      const Rebuilt kept = through_linear(kept_op, x, w, twice);
      const Rebuilt again = through_linear(op, x, w, twice);
      EXPECT_EQ(kept.saved - again.saved, N * C * 4);  // the output, once
      EXPECT_TRUE(kept.dx == again.dx);
      EXPECT_TRUE(kept.dw == again.dw);
    }
  }
}

TEST(Ops, SwigluLinearHasTheBitsOfItsPartsAndKeepsWhatItIsTold) {
  const ProductsWithoutScratch no_scratch;
  constexpr int64_t N = 64, F = 32;
  const Tensor input = uniform({N, 2 * F}, -1, 1), weight = uniform({7, F}, -1, 1);
  const Rebuilt parts = through_linear([](const Variable& x) { return swiglu(x).without_recipe(); },
                                       input, weight, false);
  const Tensor made = swiglu(input).value();  // as the output of another op
  const auto& allocator = Context::current().allocator(kCpu);
  for (const ActivationOutput output : {ActivationOutput::rebuilt, ActivationOutput::kept}) {
    const bool kept = output == ActivationOutput::kept;
    SCOPED_TRACE(kept ? "kept" : "rebuilt");
    const Variable x = Variable::leaf(input), w = Variable::leaf(weight);
    const int64_t before = allocator->stats().allocated;
    const auto held = [&] { return allocator->stats().allocated - before; };
    const Variable y = swiglu_linear(x, w, {}, output);
    EXPECT_EQ(parts.saved - held(), kept ? 0 : N * F * 4);
    const int64_t saved = held();
    allocator->reset_peak();
    backward(y, y.value());
    // d_gate_up, dh (whose place an unkept output takes; a kept one is free by then), dw.
    const int64_t dw = 7 * F * 4;
    EXPECT_EQ(allocator->stats().peak_allocated - before - saved, (kept ? 2 : 3) * N * F * 4 + dw);
    EXPECT_TRUE(parts.dx == x.grad().to_vector<float>());
    EXPECT_TRUE(parts.dw == w.grad().to_vector<float>());

    const Variable from_made = Variable::leaf(weight);
    const int64_t before_made = allocator->stats().allocated;
    const Variable z = swiglu_linear(input, from_made, made, output);  // w alone needs a gradient
    EXPECT_EQ(allocator->stats().allocated - before_made, N * 7 * 4);  // the result
    EXPECT_TRUE(z.value().to_vector<float>() == y.value().to_vector<float>());
    backward(z, y.value());
    EXPECT_TRUE(parts.dw == from_made.grad().to_vector<float>());
    backward(swiglu_linear(Variable::leaf(input), w, made, output), y.value());
    EXPECT_TRUE(made.to_vector<float>() == swiglu(input).value().to_vector<float>());

    const int64_t without = allocator->stats().allocated;
    const Variable alone = Variable::leaf(input);
    const Variable frozen = swiglu_linear(alone, weight, {}, output);
    EXPECT_EQ(allocator->stats().allocated - without, N * 7 * 4);  // the result
    backward(frozen, y.value());
    EXPECT_TRUE(parts.dx == alone.grad().to_vector<float>());
  }
}

TEST(Ops, GeluLinearHasTheBitsOfItsPartsAndKeepsWhatItIsTold) {
  const ProductsWithoutScratch no_scratch;
  constexpr int64_t N = 64, F = 32;
  const Tensor input = uniform({N, F}, -3, 3), weight = uniform({7, F}, -1, 1);
  const Tensor inner = uniform({F}, -1, 1), outer = uniform({7}, -1, 1);
  const Tensor sum = add(input, inner).value();
  const Rebuilt parts =
      through_linear([](const Variable& x) { return gelu_tanh(x); }, sum, weight, false);
  const Tensor dy = linear(gelu_tanh(sum), weight).value();
  EXPECT_TRUE(gelu_linear(input, inner, weight, outer).value().to_vector<float>() ==
              linear(gelu_tanh(sum), weight, outer).value().to_vector<float>());

  const auto& allocator = Context::current().allocator(kCpu);
  for (const ActivationOutput output : {ActivationOutput::rebuilt, ActivationOutput::kept}) {
    const bool kept = output == ActivationOutput::kept;
    SCOPED_TRACE(kept ? "kept" : "rebuilt");
    const Variable x = Variable::leaf(input), w = Variable::leaf(weight);
    const int64_t before = allocator->stats().allocated;
    const Variable y = gelu_linear(x, inner, w, {}, output);
    const int64_t held = allocator->stats().allocated;
    EXPECT_EQ(held - before, N * 7 * 4 + (kept ? N * F * 4 : 0));  // the result, and h
    allocator->reset_peak();
    backward(y, dy);
    // dw, and dx with the gradient of h, whose place h takes; or dx in its place where h was kept.
    EXPECT_EQ(allocator->stats().peak_allocated - held, (kept ? 0 : 2) * N * F * 4 + 7 * F * 4);
    EXPECT_TRUE(parts.dx == x.grad().to_vector<float>());
    EXPECT_TRUE(parts.dw == w.grad().to_vector<float>());
  }

  // Each input alone needs a gradient.
  const Variable only_x = Variable::leaf(input), only_w = Variable::leaf(weight);
  const Variable only_inner = Variable::leaf(inner), only_outer = Variable::leaf(outer);
  backward(gelu_linear(only_x, inner, weight, {}), dy);
  backward(gelu_linear(input, inner, only_w, {}), dy);
  backward(gelu_linear(input, only_inner, weight, {}), dy);
  backward(gelu_linear(input, inner, weight, only_outer), dy);
  EXPECT_TRUE(parts.dx == only_x.grad().to_vector<float>());
  EXPECT_TRUE(parts.dw == only_w.grad().to_vector<float>());
  EXPECT_TRUE(only_outer.grad().to_vector<float>() == quern::sum(dy, 0).value().to_vector<float>());
  const Floats d_inner = only_inner.grad().to_vector<float>();
  for (size_t c = 0; c < F; ++c) {
    double expected = 0, magnitude = 0;
    for (size_t row = 0; row < N; ++row) {
      const double term = parts.dx[row * F + c];
      expected += term, magnitude += std::abs(term);
    }
    // The bound of a float sum of N terms in any order.
    EXPECT_NEAR(d_inner[c], expected, N * 0x1p-24 * magnitude) << "column " << c;
  }
}

struct Head {
  Variable x = Variable::leaf(uniform({6, 4}, -1, 1));
  std::shared_ptr<Leaf> store = std::make_shared<Leaf>();
  Variable w;
  Tensor targets = random_integers({6}, 5);

  Head() {
    store->name = "head";
    store->grad = zeros({5, 4});
    store->has_buffer = true;
    w = Variable::leaf(uniform({5, 4}, -1, 1), store);
  }
  Variable loss(double scale = 1.0) const {
    return lm_head_cross_entropy(x, w, targets, kIgnoreIndex, 4, scale);
  }
};

TEST(Ops, LmHeadAddsAParametersGradientInTheForward) {
  const Head head;
  const Variable w = Variable::leaf(head.w.value()), x = Variable::leaf(head.x.value());
  backward(scale(lm_head_cross_entropy(x, w, head.targets, kIgnoreIndex, 4), 0.5));
  for (int pass = 1; pass <= 2; ++pass) {  // gradients accumulate; zero() clears them
    head.store->zero();
    const Variable loss = head.loss(0.25);
    const Floats half = head.store->grad.to_vector<float>();
    backward(loss);
    backward(head.loss(0.25));
    const Floats expected = w.grad().to_vector<float>(), both = head.store->grad.to_vector<float>();
    for (size_t i = 0; i < half.size(); ++i) {
      EXPECT_EQ(2.0f * half[i], expected[i]);    // powers of two scale without rounding
      EXPECT_NEAR(both[i], expected[i], 1e-7f);  // a sum of four in another order
    }
  }
  Floats four = x.grad().to_vector<float>();  // x is never cleared: the sum of four quarters
  for (float& value : four) value *= 2.0f;
  EXPECT_EQ(head.x.grad().to_vector<float>(), four);
}

TEST(Ops, LmHeadTellsOfItsParameterWhenTheBackwardIsDone) {
  const Head head;
  int calls = 0;
  head.store->on_ready = [&](Leaf&) { ++calls; };
  const Variable loss = head.loss();
  EXPECT_EQ(calls, 0);
  backward(loss);
  EXPECT_EQ(calls, 1);
}

TEST(Ops, LmHeadRefusesOtherUsesOfALossWhoseGradientIsAdded) {
  const Head head;
  const auto refused = [&](const std::function<void(const Variable&)>& use) {
    const Variable loss = head.loss();
    expect_error([&] { use(loss); }, {"lm_head_cross_entropy", "backward(loss)"});
  };
  refused([](const Variable& loss) { scale(loss, 2.0); });
  refused([](const Variable& loss) { backward(loss, full({}, 2.0)); });
  refused([](const Variable& loss) { backward({loss}, {full({}, 1.0)}); });
  refused([&](const Variable& loss) { add(head.x, loss); });
  refused([](const Variable& loss) { sub(loss, loss); });
  refused([](const Variable& loss) { add(loss, loss); });
  refused([&](const Variable& loss) { add(add(loss, head.loss()), loss); });
  expect_error([&] { scale(add(head.loss(), full({}, 1.0)), 2.0); }, {"add", "backward(loss)"});
  EXPECT_EQ(scale(head.loss().detach(), 2.0).numel(), 1);
  const NoGrad no_grad;
  EXPECT_EQ(scale(head.loss(), 2.0).numel(), 1);
}

// A sum of losses is a loss: here of two heads and a penalty.
TEST(Ops, LmHeadLossesMayBeSummed) {
  const Head head;
  const auto penalty = [&](const Variable& w) { return sum(mul(w, w)); };
  const Variable w = Variable::leaf(head.w.value()), x = Variable::leaf(head.x.value());
  const auto plain = [&](double factor) {
    return scale(lm_head_cross_entropy(x, w, head.targets, kIgnoreIndex, 4), factor);
  };
  backward(add(add(plain(1.0), penalty(w)), plain(0.5)));
  head.store->zero();
  const Variable two = add(head.loss(), penalty(head.w));
  EXPECT_EQ(head.store->owed, 1);
  backward(add(two, head.loss(0.5)));
  EXPECT_EQ(head.store->owed, 0);
  const Floats dw = head.store->grad.to_vector<float>(), expected = w.grad().to_vector<float>();
  const Floats dx = head.x.grad().to_vector<float>(), expected_dx = x.grad().to_vector<float>();
  // Sums of a dozen terms of about 1 in another order.
  for (size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(dw[i], expected[i], 2e-6f);
  for (size_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], expected_dx[i], 2e-6f);
}

TEST(Ops, LmHeadReportsTheCrossEntropyWithoutTheZLoss) {
  const Head head;
  const auto both = [&] { return lm_head_loss(head.x, head.w, head.targets, {.z_loss = 0.1}); };
  const LmHeadResult trained = both();
  const NoGrad no_grad;
  const LmHeadResult read = both();
  EXPECT_EQ(read.loss.value().item(), trained.loss.value().item());
  // In one chunk as well: products of other shapes may round otherwise.
  const LmHeadResult without_z = lm_head_loss(head.x, head.w, head.targets, {});
  EXPECT_EQ(trained.cross_entropy.item(), without_z.loss.value().item());
  const Variable logits = linear(head.x, head.w);
  const double z = naive_z_loss(logits, head.targets).value().item();
  // One rounding of a sum of about 2.
  EXPECT_NEAR(trained.loss.value().item(), trained.cross_entropy.item() + 0.1 * z, 1e-6);
}

TEST(Ops, LmHeadSeesGradientsZeroedTooLate) {
  const Head head;
  const Variable loss = head.loss();
  head.store->zero();
  head.loss();  // overwrites the buffer
  expect_error([&] { backward(loss); }, {"lm_head_cross_entropy", "head", "zero them before"});
}

TEST(Ops, LmHeadWithoutGradientsLeavesTheParameterAlone) {
  const Head head;
  const float trained = head.loss().value().to_vector<float>()[0];
  head.store->zero();
  const Floats before = head.store->grad.to_vector<float>();
  const NoGrad no_grad;
  EXPECT_EQ(head.loss().value().to_vector<float>()[0], trained);
  EXPECT_EQ(head.store->grad.to_vector<float>(), before);
  EXPECT_TRUE(head.store->fresh);
}

TEST(Ops, FlashAttentionNeverHoldsTheScores) {
  constexpr int64_t T = 512, D = 8;
  const Variable q = Variable::leaf(uniform({1, T, 2, D}, -1, 1));
  const int64_t peak = peak_of([&] { backward(sum(flash_attention(q, q, q))); });
  EXPECT_LT(peak, 2 * T * T * 4 / 2);  // of both heads' scores, half
}

TEST(Ops, RopeAttentionRotatesWhereTheHeadsLie) {
  constexpr int64_t T = 4, D = 8;
  const Tensor qkv = uniform({1, T, 3 * D}, -1, 1);
  const RopeTable table = make_rope_table(T, D, 100.0);
  const Tensor rotated = rope(qkv.clone().reshape({1, T, 3, D}), table).value();
  rope_attention(qkv, 1, 1, D, table);
  for (const int64_t head : {0, 1}) {
    EXPECT_EQ(qkv.slice(2, head * D, (head + 1) * D).to_vector<float>(),
              rotated.slice(2, head, head + 1).to_vector<float>());
  }
  expect_error([&] { rope_attention(Variable::leaf(qkv), 1, 1, D, table); },
               {"rope_attention", "in place"});
}

TEST(Ops, ASharedGradientIsNotOverwritten) {
  // Both inputs of add receive one gradient tensor; a second pass adds to one of them only.
  const Variable a = Variable::leaf(ones({2})), b = Variable::leaf(ones({2}));
  backward(sum(add(a, b)));
  backward(sum(a));
  EXPECT_EQ(a.grad().to_vector<float>(), (Floats{2, 2}));
  EXPECT_EQ(b.grad().to_vector<float>(), (Floats{1, 1}));
}

TEST(Ops, RefuseWhatDoesNotFit) {
  const Tensor x = zeros({2, 3}), y = zeros({4, 5}), half = zeros({2, 3}, DType::bf16);
  const Tensor ids = from_vector(std::vector<int32_t>{0, 9}, {2});
  expect_error([&] { add(x, y); }, {"add", "(2, 3)", "(4, 5)"});
  expect_error([&] { mul(x, half); }, {"mul: b has dtype bf16, expected f32"});
  expect_error([&] { exp(ids); }, {"exp: x has dtype i32, expected a float"});
  expect_error([&] { matmul(x, y); }, {"matmul: b has 4 rows, expected a's 3 columns"});
  expect_error([&] { matmul(zeros({2, 2, 3}), zeros({5, 3, 2})); }, {"matmul", "leading"});
  expect_error([&] { matmul(zeros({3}), y); }, {"matmul: a", "at least 2 dimensions"});
  expect_error([&] { linear(x, y); }, {"linear: w has shape (4, 5), expected (out, 3)"});
  expect_error([&] { max(zeros({0}), 0); }, {"max", "at least one element"});
  expect_error([&] { mean(zeros({0})); }, {"mean", "at least one element"});
  expect_error([&] { concat({x, y}, 0); }, {"concat", "(4, 5)"});
  expect_error([&] { concat({}, 0); }, {"concat", "no parts"});
  expect_error([&] { split(x, {1, 3}, 0); }, {"split", "4", "2"});
  expect_error([&] { masked_fill(x, x, 0.0); }, {"masked_fill: mask has dtype f32"});
  expect_error([&] { embedding(y, ids); }, {"embedding", "9"});
  expect_error([&] { embedding(y, x); }, {"embedding: ids has dtype f32, expected i32"});
  expect_error([&] { gather(x, 0, ids); }, {"gather: index has shape (2), expected (2, 3)"});
  expect_error([&] { cross_entropy(x, ids); }, {"cross_entropy", "9"});
  expect_error([&] { cross_entropy(y, ids); }, {"targets has shape (2), expected (4)"});
  expect_error([&] { rms_norm(half, zeros({3}, DType::bf16), 1e-5); },
               {"rms_norm: w has dtype bf16, expected f32"});
  expect_error([&] { swiglu(x); }, {"swiglu", "even"});
  expect_error([&] { swiglu_linear(x, x); }, {"swiglu_linear", "(C, F) and (..., 2 F)"});
  expect_error(
      [&] {
        gelu_linear(zeros({3, 4}), {}, zeros({5, 2}), {});
      },
      {"gelu_linear: w has shape (5, 2), expected (out, 4) for x (3, 4)"});
  expect_error(
      [&] {
        gelu_linear(zeros({3, 4}), {}, zeros({5, 4}), zeros({4}));
      },
      {"gelu_linear: b has shape (4), expected (5)"});
  expect_error(
      [&] {
        gelu_linear(zeros({3, 4}), zeros({5}), zeros({5, 4}), {});
      },
      {"gelu_linear: x_bias has shape (5), expected (4)"});
  expect_error(
      [&] {
        swiglu_linear(zeros({3, 4}), zeros({5, 2}), zeros({2, 2}));
      },
      {"swiglu_linear: made has shape (2, 2), expected (3, 2)"});
  expect_error(
      [&] {
        swiglu_linear(zeros({3, 4}), zeros({5, 2}), zeros({3, 2}, DType::bf16));
      },
      {"swiglu_linear: made has dtype bf16, expected f32"});
  expect_error([&] { weighted_sum(x, zeros({2})); }, {"weighted_sum: w has shape (2)"});
  expect_error([&] { softmax(x, 2); }, {"dimension 2"});
}

TEST(Ops, AttentionRefusesWhatDoesNotFit) {
  const Tensor q = zeros({1, 4, 8, 16});
  expect_error(
      [&] {
        flash_attention(q, zeros({1, 4, 3, 16}), zeros({1, 4, 3, 16}));
      },
      {"attention: k has 3 heads, expected 8 or a divisor of q's 8"});
  expect_error(
      [&] {
        naive_attention(q, q, zeros({1, 5, 8, 16}));
      },
      {"attention: v has shape (1, 5, 8, 16)"});
  const Tensor odd = zeros({1, 4, 2, 12});
  expect_error([&] { flash_attention(odd, odd, odd); }, {"head_dim", "12", "8"});
  expect_error([&] { rope(q, make_rope_table(3, 16, 100.0)); }, {"rope: positions 0 to 4", "3"});
}

}  // namespace
}  // namespace quern
