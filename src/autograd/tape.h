// The tape. An op computes its output and hands record() its inputs and a closure that turns the
// output's gradient into the inputs'. What the closure captures is what the op saves; it is dropped
// as soon as it has run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "autograd/variable.h"
#include "tensor/context.h"

namespace quern {

// What an op's backward reads and writes.
class Gradients {
 public:
  // Gradient of the i-th output; contiguous. Undefined when nothing downstream used that output.
  const Tensor& output(int i = 0);
  // The same with the strides it came with: for rules that need no packed copy.
  const Tensor& strided_output(int i = 0) const { return outputs_[static_cast<size_t>(i)]; }
  bool needs(int input) const;   // does anybody want the gradient of this input?
  DType dtype(int input) const;  // of its leaf's buffer, else of the input: the best for add()

  // Hands over the gradient of an input: its shape, any strides, and its dtype (or the dtype of its
  // leaf's buffer). Ignored when nobody needs it. Adding twice to one input sums.
  void add(int input, const Tensor& grad);

  // For kernels that can accumulate: where to write the gradient of `input` and whether to add to
  // what is there. A parameter's slice of the arena when the input is one (FP32 under mixed
  // precision), else fresh memory of the input's dtype. Call once for an input, and write all of
  // it.
  struct Target {
    Tensor grad;
    bool add = false;
  };
  Target target(int input);

 private:
  friend class Tape;
  Gradients(Node& node, std::vector<Tensor> outputs, class Pending& pending);
  void add_targets();

  Node& node_;
  std::vector<Tensor> outputs_;
  std::vector<std::pair<int, Tensor>> targets_;  // handed out by target(), not yet added
  class Pending& pending_;
};

using BackwardFn = std::function<void(Gradients&)>;

// Records an op. Returns plain constants when gradients are off or no input needs one (unless
// `always`).
Variable record(const char* op, Tensor output, const std::vector<Variable>& inputs,
                BackwardFn backward);
std::vector<Variable> record(const char* op, std::vector<Tensor> outputs,
                             const std::vector<Variable>& inputs, BackwardFn backward,
                             bool always = false);

// Records a loss whose forward has already written gradients, those for an incoming gradient of 1.
// Its uses are backward(loss) and one sum with other losses (record_sum), of which the same holds.
// As any other op's input, with a gradient given, or as one root of several it throws.
Variable record_root(const char* op, Tensor loss, const std::vector<Variable>& inputs,
                     BackwardFn backward);

// Records a sum: its rule hands the output's gradient on unchanged to every input of its shape.
Variable record_sum(const char* op, Tensor output, const std::vector<Variable>& inputs,
                    BackwardFn backward);

// Runs the tape backwards from `root`, latest op first, collecting gradients in the leaves. `grad`
// is the gradient of the root (needed unless it has one element). Consumes the tape: a second
// backward throws.
void backward(const Variable& root, const Tensor& grad = {});
void backward(const std::vector<Variable>& roots, const std::vector<Tensor>& grads);

// Within its lifetime ops compute values alone.
class NoGrad : ScopedValue<bool> {
 public:
  explicit NoGrad(bool enabled = false) : ScopedValue(Context::current().grad_enabled, enabled) {}
};

}  // namespace quern
