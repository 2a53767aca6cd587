// The parameter arena: a buffer for a model's FP32 parameters, one for their gradients and, where
// ops read other weights, one for these. All have the same offsets; optimizers use this layout for
// their state. Under bf16 a rank with all weights stores them in two parts: the BF16 copies that
// ops read and, for training, the remaining 16 bits of each (kernels/weights.h). Slices are
// 256-byte aligned, blocks padded to 1 KiB, padding is zero. So the gradient norm is one reduction,
// AdamW one launch, a checkpoint one write, an exchange one slice. Under an ArenaLayout a rank has
// a part of each buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/weights.h"
#include "nn/options.h"
#include "nn/parameter_table.h"
#include "nn/placement.h"

namespace quern {

// The parts of the buffers that this rank holds, where ranks share a model (dist/layout.h).
struct ArenaLayout {
  static ArenaLayout whole(const ParameterTable& table);  // everything is here

  Placement values;         // FP32 weights: this rank's share, and the frozen ones
  Placement weights;        // that ops read
  Placement gradients;      // that a backward writes
  Placement sums;           // gradients that the optimizer reads: those written, or the share's
  bool shared_out = false;  // values are not all here
  std::vector<Placement> shares = {};  // if shared out: every rank's share of the trainable values
  int rank = 0;                        // this one's
  // Blocks take turns at two places, so a block's contents are valid only while it runs.
  bool weights_in_turns = false, gradients_in_turns = false;
};

// Copies between `range` (one dimension, elements from `begin` on) and the part of it that `buffer`
// holds.
void copy_to_places(const Tensor& buffer, const Placement& places, int64_t begin,
                    const Tensor& range);
void copy_from_places(const Tensor& range, const Tensor& buffer, const Placement& places,
                      int64_t begin);

// FP32 weights to their two parts, and back; contiguous. Without `low` they are rounded to copies.
void split_weights(const Tensor& copies, const Tensor& low, const Tensor& weights);
Tensor join_weights(const Tensor& copies, const Tensor& low);

using ArenaLayoutOf = std::function<ArenaLayout(const ParameterTable&)>;

class ParameterArena {
 public:
  struct Options {
    Precision precision = Precision::fp32;
    bool training = true;  // false: no gradients, and under bf16 the weights are rounded
    uint64_t seed = 0;     // of the initial values
    ParameterTable::Regroup regroup = {};
    ArenaLayoutOf layout = {};  // none: everything is here
    // Memory of the buffers that ranks move: gradients and copies. Null: the Context's allocator.
    std::shared_ptr<MemoryPool> moved = nullptr;
    Offload offload = Offload::none;
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

  // Whether ranks share out the values. Ops then read copies() and, for FP32 weights under bf16,
  // vectors(); dist/sharded_weights.h keeps both current.
  bool is_shared_out() const { return layout_.shared_out; }
  Offload offload() const { return offload_; }
  // Whether ops read FP32 weights from vectors() instead of values(): under bf16.
  bool has_vectors() const { return vectors_.defined(); }
  // Whether the arena has no FP32 values: they are split into copies() and low() or, without
  // gradients, rounded to copies(). Under Offload::optimizer and bf16 the values, or the low parts,
  // are in the host's memory.
  bool is_split() const { return !values_.defined(); }
  const ArenaLayout& layout() const { return layout_; }
  const Placement& vector_places() const { return vector_places_; }

  // By default each buffer spans the whole arena, and a parameter lies at its begin().
  // f32, placed by layout().values; undefined where is_split()
  const Tensor& values() const { return values_; }
  // u16, as copies(); undefined if not is_split(), and without gradients
  const Tensor& low() const { return low_; }
  // f32, by layout().gradients; under ddp a view without the room behind them (dist/layout.h)
  const Tensor& grads() const { return grads_; }
  const Tensor& sums() const { return sums_; }  // f32, by layout().sums; may be grads()
  // bf16 or f32, by layout().weights; may be undefined: ops read the values
  const Tensor& copies() const { return copies_; }
  const Tensor& vectors() const { return vectors_; }  // f32, by vector_places(); may be undefined

  static Tensor slice(const Tensor& buffer, const NamedSlice& slice);  // a view of its shape

  void zero_grad();         // the next backward overwrites the gradients; moves no memory
  void finish_gradients();  // zeroes gradients that no backward wrote since zero_grad

  // For kernels that update the weights, and their copies where all are here.
  kernels::WeightArrays weight_arrays() const;
  void check_exact() const;  // an error where the weights are rounded
  // values(), or their joined parts.
  Tensor exact_values() const;
  void set_exact_values(const Tensor& values);  // a result of exact_values(), possibly modified
  // Sets the values from element `begin` on; any float dtype. Skips the elements of other ranks.
  // Call refresh_copies() afterwards where ranks share the values out.
  void set_values(int64_t begin, const Tensor& values);
  void refresh_vectors();  // after weight_arrays() were written; nothing where ranks share them out
  // Call it after values(), or copies() and low(), were written by other means. Where ranks share
  // them out, it updates only the frozen ones, which every rank has.
  void refresh_copies();
  // From now on, ops read the weights in `places` from `buffer`, which has the dtype of copies().
  void read_weights_from(const Tensor& buffer, const Placement& places);

 private:
  ParameterArena(const ParameterList& list, const Options& options);
  void allocate(const Options& options);
  void connect(Parameter& parameter, const ParameterEntry& entry, bool training);
  void initialise(uint64_t seed);
  void set_by(int64_t begin, const Shape& shape, const std::function<void(const Tensor&)>& write);
  void refresh_frozen();

  ParameterTable table_;
  std::vector<Parameter*> parameters_;
  Offload offload_ = Offload::none;
  ArenaLayout layout_;
  Placement vector_places_;
  Tensor values_, low_, grads_, sums_, copies_, vectors_;
  Tensor vector_runs_;  // u8, beside low_: a kernels::WeightRun for each piece of vector_places_
};

}  // namespace quern
