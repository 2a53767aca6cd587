#include "bench/kernel_calls.h"

#include <memory>

#include "autograd/tape.h"
#include "tensor/factory.h"

namespace quern {

namespace {

// A fixed buffer stays: gradients are added to it.
void forget_gradients(const Inputs& inputs) {
  for (const Variable& input : inputs) {
    Leaf* leaf = input.leaf_store();
    if (leaf && !leaf->has_buffer) leaf->zero();
  }
}

}  // namespace

KernelVariant forward(const char* name, const MakeInputs& make, const Op& op) {
  return {name, [=] {
            const Inputs inputs = make();
            return KernelWork{{}, [=] {
                                const NoGrad no_grad;
                                op(inputs);
                              }};
          }};
}

KernelVariant backward(const char* name, const MakeInputs& make, const Op& op) {
  return {name, [=] {
            const Inputs inputs = make();
            const auto y = std::make_shared<Variable>(op(inputs));
            const Tensor dy = normal(y->shape(), 0.0, 1.0, y->dtype());
            const auto record = [=] {
              forget_gradients(inputs);
              *y = op(inputs);
            };
            return KernelWork{record, [=] { quern::backward(*y, dy); }};
          }};
}

KernelVariant forward_backward(const char* name, const MakeInputs& make, const Op& loss) {
  return {name, [=] {
            const Inputs inputs = make();
            return KernelWork{{}, [=] {
                                forget_gradients(inputs);
                                quern::backward(loss(inputs));
                              }};
          }};
}

}  // namespace quern
