// The parameter arena: one buffer for all parameters of a model, one for their gradients and one
// for the BF16 compute copies, with the same offsets; optimizers use the same layout for their
// state. Slices are 256-byte aligned, blocks padded to 1 KiB, padding is zero. So the gradient norm
// is one reduction, AdamW one launch, a checkpoint one write, an all-reduce one slice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/options.h"
#include "nn/parameter_table.h"

namespace quern {

class ParameterArena {
 public:
  struct Options {
    Precision precision = Precision::fp32;
    bool training = true;  // false: no gradients
    uint64_t seed = 0;     // of the initial values
    ParameterTable::Regroup regroup = {};
  };

  // Allocates on the current Context's device, initialises, and gives every parameter of `model`
  // its Variables. Initial values depend only on the seed and the parameter's offset.
  ParameterArena(Module& model, const Options& options);

  const ParameterTable& table() const { return table_; }
  int64_t size() const { return table_.size(); }
  int64_t trainable() const { return table_.trainable(); }
  const std::vector<Parameter*>& parameters() const { return parameters_; }  // as in the table
  std::vector<NamedSlice> named_slices() const { return table_.slices(); }
  std::vector<NamedSlice> trainable_slices() const;  // those that have gradients

  const Tensor& values() const { return values_; }  // (size) f32
  const Tensor& grads() const { return grads_; }    // (trainable) f32
  const Tensor& copies() const { return copies_; }  // (size) bf16, defined if precision is bf16

  static Tensor slice(const Tensor& buffer, const NamedSlice& slice);  // a view of its shape

  void zero_grad();         // the next backward overwrites the gradients; moves no memory
  void finish_gradients();  // zeroes gradients that no backward wrote since zero_grad
  void refresh_copies();    // after values were written by other means than fused_update

 private:
  ParameterArena(const ParameterList& list, const Options& options);
  void connect(Parameter& parameter, const ParameterEntry& entry, bool training);
  void initialise(uint64_t seed);

  ParameterTable table_;
  std::vector<Parameter*> parameters_;
  Tensor values_, grads_, copies_;
};

}  // namespace quern
