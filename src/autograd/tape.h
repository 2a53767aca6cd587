// The tape records ops, then runs backwards over them. An op computes its output and calls record()
// with its inputs and a closure that maps the output's gradient to the inputs' gradients. The
// closure captures the tensors that the op saves, and is dropped as soon as it has run.
#pragma once

#include <functional>
#include <vector>

#include "autograd/variable.h"
#include "tensor/context.h"

namespace quern {

// The gradients that an op's backward reads and writes.
class Gradients {
 public:
  // The gradient of the i-th output, contiguous. Undefined when no later op used that output.
  const Tensor& output(int i = 0);
  // The same with any strides, for rules that need no packed copy.
  const Tensor& strided_output(int i = 0) const { return outputs_[static_cast<size_t>(i)]; }
  bool needs(int input) const;   // whether this input needs a gradient
  DType dtype(int input) const;  // of its leaf's buffer, else of the input: best for add()

  // Adds to the gradient of an input. `grad` has the input's shape, any strides, and the dtype of
  // the input or of its leaf's buffer. Ignored when the input needs no gradient.
  void add(int input, const Tensor& grad);

  // For kernels that can accumulate: the memory for the gradient of `input`, and whether to add to
  // its contents. A parameter's memory is its slice of the arena (FP32 under mixed precision); any
  // other input gets new memory of its dtype.
  // Call target() once per input, and write every element.
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

// Records an op. Returns constants without a node when gradients are disabled, or when no input
// needs one (unless `always`).
Variable record(const char* op, Tensor output, const std::vector<Variable>& inputs,
                BackwardFn backward);
std::vector<Variable> record(const char* op, std::vector<Tensor> outputs,
                             const std::vector<Variable>& inputs, BackwardFn backward,
                             bool always = false);

// Records a loss whose forward has already written gradients, for an incoming gradient of 1.
// It supports backward(loss), and one sum with other losses (record_sum) that has the same limits.
// Any other use throws: as another op's input, with a given gradient, or as one of several roots.
Variable record_root(const char* op, Tensor loss, const std::vector<Variable>& inputs,
                     BackwardFn backward);

// Records a sum: its rule passes the output's gradient unchanged to every input of its shape.
Variable record_sum(const char* op, Tensor output, const std::vector<Variable>& inputs,
                    BackwardFn backward);

// Runs the tape backwards from `root`, latest op first, and adds up gradients in the leaves. `grad`
// is the root's gradient; it may be left out (then 1) if the root has one element. Consumes the
// tape: a second backward throws.
void backward(const Variable& root, const Tensor& grad = {});
void backward(const std::vector<Variable>& roots, const std::vector<Tensor>& grads);

// During its lifetime ops only compute values and record nothing.
class NoGrad : ScopedValue<bool> {
 public:
  explicit NoGrad(bool enabled = false) : ScopedValue(Context::current().grad_enabled, enabled) {}
};

}  // namespace quern
