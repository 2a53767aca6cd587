#include "autograd/host_stash.h"

#include <gtest/gtest.h>

#include "autograd/checkpoint.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/fp8.h"
#include "autograd/ops/gelu_linear.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/swiglu.h"
#include "autograd/ops/swiglu_mlp.h"
#include "support/files.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;
using Floats = std::vector<float>;

int64_t allocated() {
  return Context::current().allocator()->stats().allocated;
}

void expect_values(const std::vector<Tensor>& found, const std::vector<Floats>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].to_vector<float>(), expected[i]);
}

// Groups come back in any order, in other memory.
TEST(HostStash, GivesBackWhatWasPut) {
  for (const std::vector<size_t>& order : {std::vector<size_t>{2, 1, 0}, {0, 1, 2}, {1, 2, 0}}) {
    const auto stash = HostStash::make();
    std::vector<std::shared_ptr<HostStash::Group>> groups;
    std::vector<std::vector<Floats>> expected;
    std::vector<Tensor> last;
    for (int i = 0; i < 3; ++i) {
      const Tensor x = normal({5, 7}, 0.0, 1.0), y = normal({3}, 0.0, 1.0);
      expected.push_back({x.to_vector<float>(), y.to_vector<float>()});
      groups.push_back(stash->put({x, y}));
      for (const Tensor& gone : last) fill(gone, -1.0);
      last = {x, y};
    }
    for (const size_t i : order) {
      const std::vector<Tensor> taken = stash->take(*groups[i]);
      EXPECT_EQ(taken[0].shape(), (Shape{5, 7}));
      expect_values(taken, expected[i]);
    }
  }
}

TEST(HostStash, KeepsTheDtypeAndTheBits) {
  const auto stash = HostStash::make();
  const Tensor x = normal({100}, 0.0, 1.0).to(DType::bf16);
  const auto group = stash->put({x});
  const std::vector<Tensor> taken = stash->take(*group);
  ASSERT_EQ(taken[0].dtype(), DType::bf16);
  EXPECT_EQ(taken[0].to(DType::f32).to_vector<float>(), x.to(DType::f32).to_vector<float>());
}

// A second forward of the same shapes takes no more memory; another shape has places of its own.
TEST(HostStash, TheNextForwardUsesTheSameMemory) {
  const auto stash = HostStash::make();
  const auto forward = [&](int64_t n) {
    const auto first = stash->put({ones({n})}), second = stash->put({ones({n})});
    stash->take(*second);
    stash->take(*first);
    return stash->bytes();
  };
  EXPECT_EQ(forward(100), 800);
  EXPECT_EQ(forward(100), 800);
  EXPECT_EQ(forward(50), 1200);
  EXPECT_EQ(forward(100), 1200);
}

TEST(HostStash, AGroupThatIsNeverTakenLeavesItsPlace) {
  const auto stash = HostStash::make();
  stash->put({ones({100})});
  const auto group = stash->put({full({100}, 2.0)}), next = stash->put({full({100}, 3.0)});
  EXPECT_EQ(stash->bytes(), 800);
  expect_values(stash->take(*group), {Floats(100, 2.0f)});
}

// The newest group stays on the device. The backward of one group begins while the one before it is
// on its way.
TEST(HostStash, BringsBackOneGroupAhead) {
  const auto stash = HostStash::make();
  std::vector<std::shared_ptr<HostStash::Group>> groups;
  for (int i = 0; i < 3; ++i) groups.push_back(stash->put({ones({1000})}));
  const int64_t before = allocated() - 4000;
  std::vector<Tensor> taken = stash->take(*groups[2]);
  EXPECT_EQ(allocated() - before, 8000);
  taken = stash->take(*groups[1]);
  EXPECT_EQ(allocated() - before, 8000);
  taken = stash->take(*groups[0]);
  EXPECT_EQ(allocated() - before, 4000);
}

// A group that was taken, and still lives, does not come back.
TEST(HostStash, BringsNothingTwice) {
  const auto stash = HostStash::make();
  const auto first = stash->put({ones({1000})});
  stash->take(*first);
  const auto second = stash->put({ones({1000})}), third = stash->put({ones({1000})});
  const int64_t before = allocated();
  std::vector<Tensor> taken = stash->take(*second);  // comes from the host
  EXPECT_EQ(allocated() - before, 4000);
}

TEST(HostStash, RefusesWhatItCannotKeep) {
  const auto stash = HostStash::make();
  expect_error([&] { stash->put({ones({3, 4}).transpose(0, 1)}); }, {"tensor 0", "not contiguous"});
  const auto group = stash->put({ones({3})});
  stash->take(*group);
  expect_error([&] { stash->take(*group); }, {"group 0 is taken for the second time"});
}

// Five blocks, whose inputs wait on the host: the same bits, and only the last one's stays on the
// device.
TEST(HostStash, CheckpointsHoldOneInput) {
  const Tensor weight = normal({16, 16}, 0.0, 0.3);
  const auto run = [&](const std::shared_ptr<HostStash>& stash, int64_t* held) {
    const Variable w = Variable::leaf(weight.clone(), "w");
    const CheckpointFn block = [&w](const std::vector<Variable>& in) {
      return std::vector{add(in[0], silu(linear(in[0], w)))};
    };
    const Variable x = Variable::leaf(ones({4, 16}));
    const int64_t before = allocated() - (stash ? stash->bytes() : 0);
    Variable y = x;
    for (int i = 0; i < 5; ++i) y = checkpoint(block, {y}, stash)[0];
    *held = allocated() - (stash ? stash->bytes() : 0) - before - y.value().bytes();
    backward(sum(mul(y, y)));
    return std::pair{x.grad().to_vector<float>(), w.grad().to_vector<float>()};
  };
  int64_t without = 0, with = 0;
  const auto expected = run(nullptr, &without);
  const auto stash = HostStash::make();
  for (int round = 0; round < 2; ++round) EXPECT_EQ(run(stash, &with), expected);
  EXPECT_EQ(without, 4 * 4 * 16 * 4);  // the inputs of the last four
  EXPECT_EQ(with, 4 * 16 * 4);
  EXPECT_EQ(stash->bytes(), 5 * 4 * 16 * 4);
}

// Three MLPs, one after the other, whose hidden layers wait on the host: the same bits.
template <class Mlp>
void expect_the_same_from_the_host(DType dtype, const Mlp& mlp) {
  const Tensor weights[] = {
      normal({64, 16}, 0.0, 0.3).to(dtype), normal({32, 16}, 0.0, 0.3).to(dtype),
      normal({16, 32}, 0.0, 0.3).to(dtype), normal({4, 16}, 0.0, 1.0).to(dtype)};
  const auto run = [&](const std::shared_ptr<HostStash>& stash) {
    std::vector<Variable> leaves;
    for (const Tensor& weight : weights) leaves.push_back(Variable::leaf(weight.clone()));
    Variable x = leaves[3];
    for (int i = 0; i < 3; ++i) x = mlp(x, leaves, stash);
    backward(sum(mul(x, x)));
    std::vector<std::vector<float>> values{x.value().to(DType::f32).template to_vector<float>()};
    for (const Variable& leaf : leaves) {
      if (leaf.leaf_store()->grad.defined()) {
        values.push_back(leaf.grad().to(DType::f32).template to_vector<float>());
      }
    }
    return values;
  };
  const auto expected = run(nullptr);
  ASSERT_EQ(expected.size(), 4u);  // two of the three weights, and x
  const auto stash = HostStash::make();
  for (int round = 0; round < 2; ++round) EXPECT_EQ(run(stash), expected);
  EXPECT_GT(stash->bytes(), 0);
}

TEST(HostStash, KeepsTheHiddenLayersOfMlps) {
  using Leaves = std::vector<Variable>;
  using Stash = std::shared_ptr<HostStash>;
  for (const ActivationOutput output : {ActivationOutput::kept, ActivationOutput::rebuilt}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      expect_the_same_from_the_host(dtype, [&](const Variable& x, const Leaves& w, const Stash& s) {
        const GateUpResult made = gate_up_linear(x, w[0]);
        return swiglu_linear(made.gate_up, w[2], made.output, output, s);
      });
      expect_the_same_from_the_host(dtype, [&](const Variable& x, const Leaves& w, const Stash& s) {
        return gelu_linear(linear(x, w[1]), {}, w[2], {}, output, s);
      });
    }
    expect_the_same_from_the_host(DType::bf16,
                                  [&](const Variable& x, const Leaves& w, const Stash& s) {
                                    const Fp8Products products(true);
                                    return swiglu_mlp(x, w[0], w[2], output, s);
                                  });
  }
}

// A validation between steps leaves the stash alone.
TEST(HostStash, NothingIsKeptWithoutATape) {
  const NoGrad no_grad;
  const auto stash = HostStash::make();
  const CheckpointFn twice = [](const std::vector<Variable>& in) {
    return std::vector{scale(in[0], 2.0)};
  };
  EXPECT_EQ(checkpoint(twice, {Variable(ones({2}))}, stash)[0].value().to_vector<float>(),
            (Floats{2, 2}));
  EXPECT_EQ(stash->bytes(), 0);
}

}  // namespace
}  // namespace quern
