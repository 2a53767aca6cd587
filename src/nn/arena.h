// The parameter arena: one buffer for all parameters of a model, one for their gradients and one
// for the weights that ops read where these are not the FP32 ones, with the same offsets;
// optimizers use the same layout for their state. Slices are 256-byte aligned, blocks padded to
// 1 KiB, padding is zero. So the gradient norm is one reduction, AdamW one launch, a checkpoint one
// write, an exchange one slice. Under an ArenaLayout a rank has a part of each buffer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/options.h"
#include "nn/parameter_table.h"
#include "nn/placement.h"

namespace quern {

// The parts of the buffers that this rank holds, where ranks share a model (dist/layout.h).
struct ArenaLayout {
  static ArenaLayout whole(const ParameterTable& table);  // everything is here

  Placement values;         // FP32 weights: this rank's share, and what is frozen
  Placement weights;        // that ops read
  Placement gradients;      // that a backward writes
  Placement sums;           // gradients that the optimizer reads: those written, or the share's
  bool shared_out = false;  // values are not all here
  std::vector<Placement> shares = {};  // if shared out: every rank's share of the trainable values
  int rank = 0;                        // this one's
  // Blocks have two places in turn, so their contents are of use only while they are run.
  bool weights_in_turns = false, gradients_in_turns = false;
};

// Copies what `buffer` has of the elements from `begin` on: from `range`, or to it, which has one
// dimension.
void copy_to_places(const Tensor& buffer, const Placement& places, int64_t begin,
                    const Tensor& range);
void copy_from_places(const Tensor& range, const Tensor& buffer, const Placement& places,
                      int64_t begin);

using ArenaLayoutOf = std::function<ArenaLayout(const ParameterTable&)>;

class ParameterArena {
 public:
  struct Options {
    Precision precision = Precision::fp32;
    bool training = true;  // false: no gradients
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

  // Whether ranks share out the values. Then copies() are the weights that ops read, and vectors()
  // those that they read in FP32 under bf16; dist/sharded_weights.h keeps both current.
  bool is_shared_out() const { return layout_.shared_out; }
  Offload offload() const { return offload_; }
  // Whether ops read no FP32 weights from values(), which are elsewhere, but from vectors().
  bool has_vectors() const { return vectors_.defined(); }
  const ArenaLayout& layout() const { return layout_; }
  const Placement& vector_places() const { return vector_places_; }

  // By default each has the whole arena, and a parameter lies at its begin().
  // f32, placed by layout().values; in the host's memory under Offload::optimizer and bf16
  const Tensor& values() const { return values_; }
  // f32, by layout().gradients; under ddp a view without the room behind them (dist/layout.h)
  const Tensor& grads() const { return grads_; }
  const Tensor& sums() const { return sums_; }  // f32, by layout().sums; may be grads()
  const Tensor& copies() const {
    return copies_;
  }                                                   // bf16 or f32, by layout().weights; may be
                                                      // undefined: ops read the values
  const Tensor& vectors() const { return vectors_; }  // f32, by vector_places(); may be undefined

  static Tensor slice(const Tensor& buffer, const NamedSlice& slice);  // a view of its shape

  void zero_grad();         // the next backward overwrites the gradients; moves no memory
  void finish_gradients();  // zeroes gradients that no backward wrote since zero_grad
  // After values were written by other means than fused_update. Where ranks share them out, only
  // the frozen ones, which all have.
  void refresh_copies();
  void refresh_vectors();  // after fused_update; nothing where ranks share the values out
  // Ops read the weights that `places` has from `buffer`, of the dtype of copies(), from now on.
  void read_weights_from(const Tensor& buffer, const Placement& places);

 private:
  ParameterArena(const ParameterList& list, const Options& options);
  void allocate(const Options& options);
  void connect(Parameter& parameter, const ParameterEntry& entry, bool training);
  void initialise(uint64_t seed);
  void set_values(int64_t begin, const Shape& shape, const std::function<void(const Tensor&)>& set);

  ParameterTable table_;
  std::vector<Parameter*> parameters_;
  Offload offload_ = Offload::none;
  ArenaLayout layout_;
  Placement vector_places_;
  Tensor values_, grads_, sums_, copies_, vectors_;
};

}  // namespace quern
