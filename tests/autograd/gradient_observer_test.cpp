// The calls that an attached GradientObserver receives during the backward.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/ops/binary.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/split.h"
#include "autograd/tape.h"
#include "tensor/factory.h"

namespace quern {
namespace {

struct Shown {
  std::string op;
  uint64_t order;
  int output, outputs;  // of a gradient
  Shape shape;
};

class Recorder : public OutputObserver, public GradientObserver {
 public:
  void on_output(const char* op, const Tensor& output) override {
    outputs.push_back({op, Context::current().next_node, 0, 0, output.shape()});
  }
  void on_gradient(uint64_t order, int output, int count, const Tensor& grad) override {
    gradients.push_back({"", order, output, count, grad.shape()});
  }

  std::vector<Shown> outputs, gradients;

 private:
  Observe<OutputObserver> observe_outputs_{*this};
  Observe<GradientObserver> observe_gradients_{*this};
};

// (6) is split into 1, 2 and 3. The first part is not used and has no gradient.
TEST(GradientObserver, SeesEachOutputsGradientUnderTheNumberOfItsOp) {
  const Variable x = Variable::leaf(ones({6}));
  Recorder seen;
  const std::vector<Variable> parts = split(x, {1, 2, 3}, 0);
  add(x.value(), x.value());  // of constants: seen, but not recorded
  const Variable loss = add(sum(parts[1]), sum(parts[2]));
  backward(loss);

  ASSERT_EQ(seen.outputs.size(), 3u + 1u + 3u);
  const uint64_t of_split = seen.outputs[0].order;
  EXPECT_EQ(seen.outputs[2].order, of_split);
  EXPECT_EQ(seen.outputs[4].order, of_split + 1);
  ASSERT_EQ(seen.gradients.size(), 5u);  // add, two sums, two parts
  EXPECT_EQ(seen.gradients[0].order, of_split + 3);
  EXPECT_EQ(seen.gradients[0].shape, Shape{});
  const Shown &second = seen.gradients[3], &third = seen.gradients[4];
  for (const Shown* part : {&second, &third}) {
    EXPECT_EQ(part->order, of_split);
    EXPECT_EQ(part->outputs, 3);
  }
  EXPECT_EQ(second.output, 1);
  EXPECT_EQ(second.shape, Shape{2});
  EXPECT_EQ(third.output, 2);
  EXPECT_EQ(third.shape, Shape{3});
}

// Observers attach independently; the previous one is restored.
TEST(GradientObserver, IsOptional) {
  class Outputs : public OutputObserver {
   public:
    void on_output(const char*, const Tensor&) override { ++count; }
    int count = 0;
  } outputs;
  const Variable x = Variable::leaf(ones({2}));
  {
    const Observe<OutputObserver> outer(outputs);
    EXPECT_EQ(outer.previous(), nullptr);
    {
      Recorder inner;
      sum(x);
    }
    EXPECT_EQ(Context::current().observer<GradientObserver>(), nullptr);
    backward(sum(x));
  }
  EXPECT_EQ(Context::current().observer<OutputObserver>(), nullptr);
  EXPECT_EQ(outputs.count, 1);
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace quern
