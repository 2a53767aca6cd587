#include "autograd/checkpoint.h"

#include <gtest/gtest.h>

#include "autograd/ops/binary.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/rms_norm.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;
using Values = std::vector<Variable>;

constexpr int64_t kC = 24;

// Two parameters, used by every block, as leaves of each run.
struct Model {
  Variable w = Variable::leaf(weights(), "w");
  Variable g = Variable::leaf(ones({kC}), "g");

  static Tensor weights() {
    Context fixed(kCpu, 7);
    const ContextScope scope(fixed);
    return normal({kC, kC}, 0.0, 0.3).clone();
  }
  Variable block(const Variable& x) const { return add(x, silu(linear(rms_norm(x, g, 1e-5), w))); }
};

struct Result {
  Floats y, dx, dw, dg;
  bool operator==(const Result&) const = default;
};

Result run(const std::function<Variable(const Model&, const Variable&)>& forward) {
  const Model model;
  const Variable x = Variable::leaf(Model::weights().slice(0, 0, 10));
  const Variable y = forward(model, x);
  backward(sum(mul(y, y)));
  return {y.value().to_vector<float>(), x.grad().to_vector<float>(),
          model.w.grad().to_vector<float>(), model.g.grad().to_vector<float>()};
}

Variable three_blocks(const Model& m, const Variable& x) {
  return m.block(m.block(m.block(x)));
}

TEST(Checkpoint, OneBlockEachGivesTheSameBits) {
  const Result plain = run(three_blocks);
  const Result saved = run([](const Model& m, Variable x) {
    const auto block = [&m](const Variable& in) { return m.block(in); };
    for (int i = 0; i < 3; ++i) x = checkpoint(block, x);
    return x;
  });
  EXPECT_TRUE(plain == saved);
}

TEST(Checkpoint, NestedGivesTheSameValues) {
  const Result plain = run(three_blocks);
  const Result saved = run([](const Model& m, const Variable& x) {
    const auto block = [&m](const Variable& in) { return m.block(in); };
    const auto two = [block](const Variable& in) {
      return checkpoint(block, checkpoint(block, in));
    };
    return checkpoint(block, checkpoint(two, x));
  });
  EXPECT_TRUE(plain == saved);
}

TEST(Checkpoint, SeveralInputsAndOutputsSomeUnused) {
  const auto fn = [](const Values& in) {
    return Values{mul(in[0], in[1]), exp(in[0]), add(in[1], in[2])};
  };
  const auto gradients = [&](bool with_checkpoint) {
    const Variable a = Variable::leaf(full({2}, 1.5)), b = Variable::leaf(full({2}, 2.5));
    const Variable constant = ones({2});
    const Values inputs{a, b, constant};
    const Values out = with_checkpoint ? checkpoint(fn, inputs) : fn(inputs);
    backward(sum(add(out[0], out[2])));
    return std::pair{a.grad().to_vector<float>(), b.grad().to_vector<float>()};
  };
  EXPECT_EQ(gradients(true), gradients(false));
}

TEST(Checkpoint, ParametersGetGradientsWhenNoInputNeedsOne) {
  const Variable w = Variable::leaf(full({2}, 3.0));
  const auto fn = [&w](const Variable& x) { return mul(x, w); };
  backward(sum(checkpoint(fn, full({2}, 5.0))));
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{5, 5}));
}

TEST(Checkpoint, HoldsTheInputsAlone) {
  const auto& allocator = Context::current().allocator(kCpu);
  const auto held_after = [&](bool with_checkpoint) {
    const Variable x = Variable::leaf(ones({1000}));
    const auto fn = [](const Variable& in) {
      Variable y = in;
      for (int i = 0; i < 10; ++i) y = exp(scale(y, 0.1));
      return y;
    };
    const int64_t before = allocator->stats().allocated;
    const Variable y = with_checkpoint ? checkpoint(fn, x) : fn(x);
    return allocator->stats().allocated - before;
  };
  EXPECT_EQ(held_after(true), 4000);  // y
  EXPECT_EQ(held_after(false), 40000);
}

TEST(Checkpoint, UnderNoGradIsTheFunction) {
  const NoGrad no_grad;
  const Variable x = Variable::leaf(ones({2}));
  const Variable y = checkpoint([](const Variable& in) { return scale(in, 2.0); }, x);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.value().to_vector<float>(), (Floats{2, 2}));
}

TEST(Checkpoint, SecondBackwardIsAnError) {
  const Variable x = Variable::leaf(ones({}));
  const Variable y = checkpoint([](const Variable& in) { return exp(in); }, x);
  backward(y);
  expect_error([&] { backward(y); }, {"checkpoint", "already"});
}

}  // namespace
}  // namespace quern
