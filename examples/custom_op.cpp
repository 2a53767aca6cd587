// Defines a custom differentiable op; docs/adding_an_op.md explains it.
#include <cstdio>

#include <quern/autograd/ops/binary.h>
#include <quern/autograd/ops/pointwise.h>
#include <quern/autograd/tape.h>
#include <quern/tensor/factory.h>

using namespace quern;

// cap tanh(x / cap): keeps logits within (-cap, cap).
Variable softcap(const Variable& x, double cap) {
  const Tensor t = tanh(scale(x.detach(), 1.0 / cap)).value();  // saves: t
  return record("softcap", scale(t, cap).value(), {x}, [t](Gradients& g) {
    const Variable slope = scale(mul(t, t), -1.0, 1.0);  // 1 - t^2
    g.add(0, mul(g.output(), slope).value());
  });
}

int main() {
  const Variable x = Variable::leaf(from_vector<float>({-3.0f, 0.5f, 8.0f}, {3}));
  const Variable y = softcap(x, 2.0);
  backward(y, ones({3}));
  const auto values = y.value().to_vector<float>(), slopes = x.grad().to_vector<float>();
  for (size_t i = 0; i < 3; ++i) std::printf("softcap %7.4f  slope %.4f\n", values[i], slopes[i]);
}
