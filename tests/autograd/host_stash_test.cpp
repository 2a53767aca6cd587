#include "autograd/host_stash.h"

#include <gtest/gtest.h>

#include "autograd/checkpoint.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/reduce.h"
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
    for (int i = 0; i < 3; ++i) {
      const Tensor x = normal({5, 7}, 0.0, 1.0), y = normal({3}, 0.0, 1.0);
      expected.push_back({x.to_vector<float>(), y.to_vector<float>()});
      groups.push_back(stash->put({x, y}));
      fill(x, -1.0);
      fill(y, -1.0);
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
  const auto group = stash->put({full({100}, 2.0)});
  EXPECT_EQ(stash->bytes(), 400);
  expect_values(stash->take(*group), {Floats(100, 2.0f)});
}

// The backward of one group begins while the one before it is on its way.
TEST(HostStash, BringsBackOneGroupAhead) {
  const auto stash = HostStash::make();
  std::vector<std::shared_ptr<HostStash::Group>> groups;
  for (int i = 0; i < 3; ++i) groups.push_back(stash->put({ones({1000})}));
  const int64_t before = allocated();
  std::vector<Tensor> taken = stash->take(*groups[2]);
  EXPECT_EQ(allocated() - before, 8000);
  taken = stash->take(*groups[1]);
  EXPECT_EQ(allocated() - before, 8000);
  taken = stash->take(*groups[0]);
  EXPECT_EQ(allocated() - before, 4000);
}

TEST(HostStash, RefusesWhatItCannotKeep) {
  const auto stash = HostStash::make();
  expect_error([&] { stash->put({ones({3, 4}).transpose(0, 1)}); }, {"tensor 0", "not contiguous"});
  const auto group = stash->put({ones({3})});
  stash->take(*group);
  expect_error([&] { stash->take(*group); }, {"group 0 is taken for the second time"});
}

// Five blocks, whose inputs wait on the host: the same bits, and none of them stays on the device.
TEST(HostStash, CheckpointsHoldNoInputs) {
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
  EXPECT_EQ(with, 0);
  EXPECT_EQ(stash->bytes(), 5 * 4 * 16 * 4);
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
