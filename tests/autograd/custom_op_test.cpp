// The op that docs/adding_an_op.md defines in one file, and a check that the page shows the real
// code from here and from src/.
#include <gtest/gtest.h>

#include <string>

#include "autograd/gradcheck.h"
#include "autograd/ops/binary.h"
#include "autograd/ops/pointwise.h"
#include "support/op_cases.h"
#include "support/page.h"
#include "tensor/factory.h"

namespace quern {
namespace {

using namespace testing_support;

// cap tanh(x / cap): keeps logits within (-cap, cap).
Variable softcap(const Variable& x, double cap) {
  const Tensor t = tanh(scale(x.detach(), 1.0 / cap)).value();  // saves: t
  return record("softcap", scale(t, cap).value(), {x}, [t](Gradients& g) {
    const Variable slope = scale(mul(t, t), -1.0, 1.0);  // 1 - t^2
    g.add(0, mul(g.output(), slope).value());
  });
}

TEST(CustomOp, PassesTheGradientCheck) {
  const auto fn = [](const std::vector<Variable>& in) { return softcap(in[0], 1.5); };
  for (const Tensor& x :
       {values({3, 5}, 1, -4.0, 4.0), strided_values({2, 3}, 2), values({0}, 3)}) {
    const GradcheckResult result = gradcheck(fn, {x});
    EXPECT_TRUE(result.ok) << result.message;
  }
}

TEST(CustomOp, RecordsOneNodeAndWorksInBf16) {
  const Variable x = Variable::leaf(full({4}, 100.0, DType::bf16));
  const uint64_t before = Context::current().next_node;
  const Variable y = softcap(x, 2.0);
  EXPECT_EQ(Context::current().next_node, before + 1);
  EXPECT_EQ(y.value().to(DType::f32).to_vector<float>(), std::vector<float>(4, 2.0f));
  backward(y, ones({4}, DType::bf16));
  EXPECT_EQ(x.grad().to(DType::f32).to_vector<float>(), std::vector<float>(4, 0.0f));
}

TEST(CustomOp, ThePageShowsTheRealCode) {
  EXPECT_EQ(pieces_of_page("adding_an_op.md"), 11);
}

}  // namespace
}  // namespace quern
