// The parameter arena: all parameters of a model in one buffer, and so their gradients, Adam's two
// moments and the BF16 compute copies, all with the same offsets. Slices are 256-byte aligned,
// blocks padded to 1 KiB, padding is zero: the gradient norm is one reduction, AdamW one launch, a
// checkpoint one write, an all-reduce a slice.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/options.h"

namespace quern {

// A named piece of the arena as files know it: a parameter, or a part of a fused one.
struct NamedSlice {
  std::string name;
  Shape shape;
  int64_t begin = 0;  // elements
};

class ParameterArena {
 public:
  struct Options {
    Precision precision = Precision::fp32;
    bool training = true;  // false: no gradients and moments
    uint64_t seed = 0;     // of the initial values
    // May change how the optimizer treats a parameter (freeze it, say) before memory is laid out.
    std::function<void(const std::string& name, ParameterGroup& group)> regroup = {};
  };

  // Allocates on the current Context's device, initialises, and gives every parameter of `model`
  // its Variables. Initial values depend on the seed and the parameter's place alone. Trainable
  // parameters come first, in forward order; frozen ones after them.
  ParameterArena(Module& model, const Options& options);

  int64_t size() const { return size_; }            // elements, padding included
  int64_t trainable() const { return trainable_; }  // the first so many have gradients and moments
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  std::vector<NamedSlice> named_slices() const;  // in arena order

  const Tensor& values() const { return values_; }    // (size) f32
  const Tensor& grads() const { return grads_; }      // (trainable) f32
  const Tensor& moment1() const { return moment1_; }  // (trainable) f32
  const Tensor& moment2() const { return moment2_; }
  const Tensor& copies() const {
    return copies_;
  }  // (size) bf16; undefined unless precision is bf16

  Tensor slice(const Tensor& buffer, const NamedSlice& slice) const;  // a view of its shape

  void zero_grad();         // the next backward overwrites the gradients; moves no memory
  void finish_gradients();  // zeroes the gradients of parameters that no backward reached since
                            // zero_grad
  void refresh_copies();    // after values were written by other means than AdamW

 private:
  void place(const ParameterList& list);
  void initialise(uint64_t seed);
  void connect(Parameter& parameter, bool training);

  std::vector<Parameter*> parameters_;
  int64_t size_ = 0, trainable_ = 0;
  Tensor values_, grads_, moment1_, moment2_, copies_;
};

}  // namespace quern
