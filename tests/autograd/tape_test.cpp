#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/ops/binary.h"
#include "autograd/ops/concat.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/split.h"
#include "autograd/ops/view.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;

TEST(Tape, ChainRule) {
  const Variable x = Variable::leaf(full({}, 3.0));
  backward(mul(mul(x, x), x));
  EXPECT_EQ(x.grad().item(), 27.0);
}

TEST(Tape, AValueUsedTwiceCollectsBothGradients) {
  const Variable x = Variable::leaf(full({}, 2.0));
  const Variable y = scale(x, 3.0);
  backward(add(mul(y, y), y));  // 9x^2 + 3x
  EXPECT_EQ(x.grad().item(), 39.0);
}

TEST(Tape, GradientsAddUpUntilZeroed) {
  const Variable x = Variable::leaf(full({}, 2.0));
  for (int pass = 1; pass <= 3; ++pass) {
    backward(mul(x, x));
    EXPECT_EQ(x.grad().item(), 4.0 * pass);
  }
  x.leaf_store()->zero();
  backward(mul(x, x));
  EXPECT_EQ(x.grad().item(), 4.0);
}

TEST(Tape, ABufferKeepsItsAddress) {
  const auto store = std::make_shared<Leaf>();
  store->grad = full({2}, 7.0);
  store->has_buffer = true;
  const void* address = store->grad.raw_data();
  const Variable x = Variable::leaf(ones({2}), store);
  for (const float expected : {2.0f, 4.0f}) {  // the first pass overwrites the 7
    backward(sum(mul(x, x)));
    EXPECT_EQ(store->grad.to_vector<float>(), (Floats{expected, expected}));
    EXPECT_EQ(store->grad.raw_data(), address);
  }
  store->zero();
  backward(sum(x));
  EXPECT_EQ(store->grad.to_vector<float>(), (Floats{1, 1}));
}

TEST(Tape, AnFp32BufferKeepsWhatBf16WouldLose) {
  const auto store = std::make_shared<Leaf>();
  store->grad = zeros({1});
  store->has_buffer = true;
  const Variable x = Variable::leaf(ones({1}, DType::bf16), store);
  backward(scale(x, 256.0));
  backward(scale(x, 1.0));  // 257 needs nine bits
  EXPECT_EQ(store->grad.item(), 257.0);
}

TEST(Tape, SecondBackwardSaysWhatToDo) {
  const Variable x = Variable::leaf(ones({}));
  const Variable y = exp(x);
  backward(y);
  expect_error([&] { backward(y); }, {"exp", "already", "compute the forward again"});
}

TEST(Tape, SharedPartIsConsumedToo) {
  const Variable x = Variable::leaf(ones({}));
  const Variable shared = exp(x);
  backward(scale(shared, 2.0));
  expect_error([&] { backward(scale(shared, 3.0)); }, {"exp", "already"});
}

TEST(Tape, RefusesARootThatNeedsNoGradient) {
  expect_error([] { backward(exp(ones({}))); }, {"backward: the root"});
}

TEST(Tape, RefusesAManyElementRootWithoutAGradient) {
  const Variable x = Variable::leaf(ones({3}));
  expect_error([&] { backward(exp(x)); }, {"(3)", "reduce"});
  expect_error([&] { backward(exp(x), ones({2})); }, {"(2)", "(3)"});
}

TEST(Tape, RefusesAGradientOfTheWrongShapeOrDtype) {
  const Variable x = Variable::leaf(ones({3}));
  const auto wrong = [&](const Tensor& grad) {
    return record("wrong_rule", ones({}), {x}, [grad](Gradients& g) { g.add(0, grad); });
  };
  expect_error([&] { backward(wrong(ones({2}))); }, {"wrong_rule", "input 0", "(2)", "(3)"});
  expect_error([&] { backward(wrong(ones({3}, DType::f64))); }, {"wrong_rule", "f64", "f32"});
}

TEST(Tape, OnlyFloatsAreLeaves) {
  expect_error([] { Variable::leaf(zeros({2}, DType::i32), "ids"); }, {"ids", "i32"});
}

TEST(Tape, GradOfANonLeafOrAnUntouchedLeafIsAnError) {
  const Variable x = Variable::leaf(ones({}), "weight");
  expect_error([&] { x.grad(); }, {"weight"});
  expect_error([&] { exp(x).grad(); }, {"leaf"});
}

TEST(Tape, ChainOf100000NodesRunsAndIsReleased) {
  constexpr int kNodes = 100000;
  const Variable x = Variable::leaf(ones({}));
  {
    Variable y = x;
    for (int i = 0; i < kNodes; ++i) y = scale(y, 1.0, 1.0);
    EXPECT_EQ(y.value().item(), 100001.0);
    backward(y);
  }
  EXPECT_EQ(x.grad().item(), 1.0);
}

TEST(Tape, ChainOf100000NodesIsReleasedUnused) {
  const Variable x = Variable::leaf(ones({}));
  Variable y = x;
  for (int i = 0; i < 100000; ++i) y = add(y, x);
  y = Variable();
  EXPECT_FALSE(x.leaf_store()->grad.defined());
}

TEST(Tape, SavedTensorsGoAsSoonAsTheyAreUsed) {
  const Variable x = Variable::leaf(ones({}));
  const Tensor saved = ones({1000});
  bool gone = false;
  const Variable first = record("first", ones({}), {x}, [&](Gradients& g) {
    gone = saved.is_sole_owner();  // `second`, which ran before, has dropped its handle
    g.add(0, g.output());
  });
  const Variable second =
      record("second", ones({}), {first}, [saved](Gradients& g) { g.add(0, g.output()); });
  EXPECT_FALSE(saved.is_sole_owner());
  backward(second);
  EXPECT_TRUE(gone);
}

TEST(Tape, AnOutputThatNobodyUsedHasNoGradient) {
  const Variable x = Variable::leaf(from_vector(Floats{1, 2, 3}, {3}));
  backward(sum(split(x, {1, 2}, 0)[1]));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{0, 1, 1}));
}

TEST(Tape, SeveralRoots) {
  const Variable x = Variable::leaf(full({}, 2.0));
  const Variable y = scale(x, 3.0);
  backward({y, mul(y, y)}, {ones({}), ones({})});
  EXPECT_EQ(x.grad().item(), 3.0 + 36.0);
}

// The order of a graph's nodes is that of one Context.
TEST(Tape, RefusesAGraphOfTwoContexts) {
  const Variable x = Variable::leaf(full({}, 2.0));
  const auto under_another = [](const Variable& in) {
    Context context(Device{});
    const ContextScope scope(context);
    return scale(in, 3.0);
  };
  const Variable y = under_another(x), z = under_another(x);
  expect_error([&] { backward({y, z}, {ones({}), ones({})}); }, {"scale", "two Contexts"});
  const Variable later = scale(scale(x, 3.0), 3.0);
  expect_error([&] { under_another(later); }, {"scale", "another Context"});
}

TEST(Tape, HookRunsOnceWhenTheLeafIsDone) {
  std::vector<double> seen;
  const auto leaf = [&](double value) {
    Variable x = Variable::leaf(full({}, value));
    x.leaf_store()->on_ready = [&seen](Leaf& store) { seen.push_back(store.grad.item()); };
    return x;
  };
  const Variable early = leaf(2.0), late = leaf(5.0);
  const Variable y = mul(early, early);
  backward(mul(mul(y, late), late));  // early^2 late^2
  EXPECT_EQ(seen, (std::vector<double>{40.0, 100.0})) << "the last layer's leaf comes first";
}

TEST(Tape, HookRunsForALeafBehindAnUnusedOutput) {
  int calls = 0;
  const Variable x = Variable::leaf(ones({2}));
  x.leaf_store()->on_ready = [&](Leaf&) { ++calls; };
  const Variable unused = exp(x);
  const std::vector<Variable> two =
      record("two", std::vector{ones({2}), ones({2})}, {x, unused}, [](Gradients& g) {
        g.add(0, g.output(0));  // nothing for input 1
      });
  backward(sum(two[0]));
  EXPECT_EQ(calls, 1);
}

// On every rank alike, since a hook may begin a collective: not in the order of addresses.
TEST(Tape, HooksOfLeavesWithoutAGradientRunInTheGraphsOrder) {
  constexpr int kCount = 40;
  std::vector<int> seen, expected(kCount);
  std::vector<Variable> inputs;
  for (int i = 0; i < kCount; ++i) {
    const Variable x = Variable::leaf(ones({2}));
    x.leaf_store()->on_ready = [&seen, i](Leaf&) { seen.push_back(i); };
    inputs.push_back(exp(x));
    expected[static_cast<size_t>(kCount - 1 - i)] = i;
  }
  inputs.push_back(Variable::leaf(ones({2})));
  backward(
      sum(record("last_only", ones({2}), inputs, [](Gradients& g) { g.add(kCount, g.output()); })));
  EXPECT_EQ(seen, expected);
}

TEST(Tape, NoGradRecordsNothingAndNests) {
  const Variable x = Variable::leaf(ones({}));
  {
    const NoGrad outer;
    EXPECT_FALSE(exp(x).requires_grad());
    {
      const NoGrad again(true);
      EXPECT_TRUE(exp(x).requires_grad());
    }
    EXPECT_FALSE(exp(x).requires_grad());
  }
  EXPECT_TRUE(exp(x).requires_grad());
  EXPECT_FALSE(exp(x.detach()).requires_grad());
}

TEST(Tape, ConstantsSaveNothing) {
  const Tensor a = ones({10});
  const Variable y = mul(a, a);
  EXPECT_TRUE(a.is_sole_owner());
}

struct AllocationNames : AllocationObserver {
  AllocationNames() { Context::current().allocator(kCpu)->set_observer(this); }
  ~AllocationNames() override { Context::current().allocator(kCpu)->set_observer(nullptr); }
  void on_allocate(const Allocation& a) override { names.emplace_back(a.name); }
  void on_release(const Allocation&) override {}
  std::vector<std::string> names;
};

TEST(Tape, ViewsOfGradientsAreNotPacked) {
  const Variable x = Variable::leaf(uniform({2, 3}, -1, 1)), z = Variable::leaf(ones({2, 4}));
  const Tensor factor = uniform({2, 3}, -1, 1), grad = uniform({7, 2}, -1, 1);
  const Variable y = transpose(concat({mul(x, factor), z}, 1), 0, 1);
  AllocationNames seen;
  backward(y, grad);
  // z's leaf keeps a packed copy; mul reads a transposed slice.
  EXPECT_EQ(seen.names, (std::vector<std::string>{"contiguous", "mul"}));
  const Tensor back = grad.transpose(0, 1);
  EXPECT_EQ(x.grad().to_vector<float>(),
            mul(back.slice(1, 0, 3), factor).value().to_vector<float>());
  EXPECT_EQ(z.grad().to_vector<float>(), back.slice(1, 3, 7).to_vector<float>());
}

TEST(Tape, ProductsPackHeadsOnce) {
  const auto heads = [] { return Variable::leaf(uniform({2, 5, 3, 4}, -1, 1)); };  // (B, T, H, D)
  const Variable q = permute(heads(), {0, 2, 1, 3}), k = permute(heads(), {0, 2, 1, 3});
  AllocationNames seen;
  const Variable scores = matmul(q, k, false, true);
  backward(scores, ones(scores.shape()));
  EXPECT_EQ(std::count(seen.names.begin(), seen.names.end(), "matmul operand"), 2);
}

struct CountRanges : RangeObserver {
  std::vector<std::string> names;
  int open = 0;
  void on_begin(const Range& range) override {
    names.push_back(range.name);
    ++open;
  }
  void on_end() override { --open; }
};

TEST(Tape, RangesNameForwardAndBackward) {
  CountRanges ranges;
  const Variable x = Variable::leaf(ones({}));
  {
    const ObserveRanges observe(ranges);
    backward(exp(scale(x, 2.0)));
  }
  EXPECT_EQ(ranges.names, (std::vector<std::string>{"scale", "exp", "exp", "scale"}));
  EXPECT_EQ(ranges.open, 0);
}

// An observer sees the ranges that begin and end while it is attached, together with the others.
TEST(Tape, ObserversOfRangesAreAttachedBesideEachOther) {
  CountRanges outer, inner;
  const ObserveRanges observe_outer(outer);
  {
    const RangeScope open(RangeKind::phase, "forward");
    const ObserveRanges observe_inner(inner);
    const RangeScope module(RangeKind::module, "mlp");
    EXPECT_EQ(outer.open, 2);
    EXPECT_EQ(inner.open, 1);
  }
  EXPECT_EQ(outer.names, (std::vector<std::string>{"forward", "mlp"}));
  EXPECT_EQ(inner.names, std::vector<std::string>{"mlp"});
  EXPECT_EQ(outer.open, 0);
  EXPECT_EQ(inner.open, 0);
}

struct NodeNumbers : RangeObserver, InputObserver {
  std::vector<uint64_t> forward, backward;
  std::vector<std::vector<Shape>> inputs;
  void on_begin(const Range& range) override {
    if (range.node != Range::kNoNode) backward.push_back(range.node);
  }
  void on_end() override {}
  void on_inputs(const char*, uint64_t node, const std::vector<Shape>& shapes) override {
    forward.push_back(node);
    inputs.push_back(shapes);
  }
};

TEST(Tape, ABackwardsRangeCarriesItsForwardsNumber) {
  NodeNumbers seen;
  const ObserveRanges observe_ranges(seen);
  const Observe<InputObserver> observe_inputs(seen);
  const Variable x = Variable::leaf(ones({2, 3}));
  backward(sum(mul(x, ones({3}))));
  exp(Variable(ones({4})));  // needs no gradient
  ASSERT_EQ(seen.forward.size(), 3u);
  EXPECT_EQ(seen.inputs[0], (std::vector<Shape>{{2, 3}, {3}}));
  EXPECT_EQ(seen.backward, (std::vector<uint64_t>{seen.forward[1], seen.forward[0]}));
  EXPECT_EQ(seen.forward[2], Range::kNoNode);
}

}  // namespace
}  // namespace quern
