#include "autograd/checkpoint.h"

#include <utility>

#include "tensor/context.h"

namespace quern {

std::vector<Variable> checkpoint(const CheckpointFn& fn, const std::vector<Variable>& inputs,
                                 const std::shared_ptr<HostStash>& stash) {
  std::vector<Tensor> values;
  for (const Variable& input : inputs) values.push_back(input.value());
  const auto saved = keep(std::move(values), stash);  // saves: the inputs
  std::vector<Tensor> outputs;
  std::vector<bool> wanted;
  {
    const NoGrad no_grad;
    std::vector<Variable> detached;
    for (const Variable& input : inputs) {
      detached.emplace_back(input.value());
      wanted.push_back(input.requires_grad());
    }
    for (const Variable& output : fn(detached)) outputs.push_back(output.value());
  }
  const bool always = true;  // fn's parameters need gradients even when no input does
  return record(
      "checkpoint", std::move(outputs), inputs,
      [fn, saved, wanted](Gradients& g) {
        std::vector<Variable> again;
        for (const Tensor& input : saved()) {
          again.push_back(wanted[again.size()] ? Variable::leaf(input) : Variable(input));
        }
        std::vector<Variable> roots;
        std::vector<Tensor> grads;
        {
          const NoGrad with_grad(true);
          const std::vector<Variable> computed = fn(again);
          for (size_t i = 0; i < computed.size(); ++i) {
            const Tensor& grad = g.output(static_cast<int>(i));
            if (!grad.defined() || !computed[i].requires_grad()) continue;
            roots.push_back(computed[i]);
            grads.push_back(grad);
          }
        }
        backward(roots, grads);
        for (size_t i = 0; i < again.size(); ++i) {
          if (wanted[i] && again[i].leaf_store()->grad.defined()) {
            g.add(static_cast<int>(i), again[i].grad());
          }
        }
      },
      always);
}

Variable checkpoint(const std::function<Variable(const Variable&)>& fn, const Variable& x) {
  return checkpoint([fn](const std::vector<Variable>& in) { return std::vector{fn(in[0])}; },
                    std::vector{x})[0];
}

}  // namespace quern
