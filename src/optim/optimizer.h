// The base class of optimizers: the common part of every step, and the state in checkpoints.
// docs/adding_an_optimizer.md describes how to add one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/optimizer.h"
#include "nn/arena.h"

namespace quern {

// Optimizer state in files: a tensor named `prefix` + parameter name for each slice.
struct OptimizerBuffer {
  std::string prefix;                   // "moment1."
  Tensor data;                          // floating
  std::vector<NamedSlice> slices = {};  // of data; of the whole state, if this is a share
  std::optional<Placement> share = {};  // data's part of the whole state; none: everything
  Tensor low = {};  // u16, of weights in two parts: the low bits of each; data has the copies
};

// Zeros in the memory that the arena's Offload selects for optimizer state.
Tensor zero_state(const ParameterArena& arena, int64_t count, const char* name,
                  DType dtype = DType::f32);

using ParameterFilter = std::function<bool(const ParameterEntry&)>;

// Layout of state with one element for each element of the selected trainable parameters, in the
// arena's order. Where ranks share out the arena: of this rank's share.
struct StateLayout {
  StateLayout(const ParameterArena& arena, const ParameterFilter& selects);

  int64_t size() const { return places.size(); }
  OptimizerBuffer buffer(std::string prefix, const Tensor& data) const;

  Placement places;
  std::vector<NamedSlice> slices;  // of the arena
  bool shared = false;
};

// Limits on a step's change of the weights.
struct StepGuard {
  double clip = 1.0;  // largest gradient norm; 0: no clipping
  KernelKind kernels = KernelKind::fused;
  // After a step with a non-finite value, skip all later ones too: the weights keep the last finite
  // state until the host reads the counters.
  bool halt_on_nonfinite = false;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  virtual const char* name() const = 0;  // the value of the configuration key `optimizer`
  // The state that a checkpoint holds besides the arena's values and the step's counters.
  virtual std::vector<OptimizerBuffer> buffers() const = 0;

  // Sets the rate of later steps in device memory: a captured step reads it at each replay.
  void set_learning_rate(double lr);

  // Clips the arena's gradients (as a factor; they are not changed) and updates weights and
  // state. When the gradient norm or `loss` (one FP32 element; may be undefined) is not
  // finite, only the count of skipped steps changes. With fused kernels nothing is read back, so
  // the step can be captured.
  void step(const Tensor& loss = {});
  void step(double lr, const Tensor& loss = {}) {
    set_learning_rate(lr);
    step(loss);
  }

  // Whether an update threw midway, so that the weights are only partly updated.
  bool torn() const { return updating_; }

  kernels::StepState state() const;  // waits for the device
  void set_progress(int64_t step, int64_t skipped);
  const Tensor& device_state() const { return state_; }  // u8, one kernels::StepState

  // For ranks that compute the gradient norm together. Returns its partial sums (u8); from this
  // call on the caller fills them before every fused step (kernels::rank_sum).
  const Tensor& take_over_norm() {
    fills_norm_ = false;
    return partials_;
  }

 protected:
  // The arena must have been built for training, and outlive this.
  Optimizer(ParameterArena& arena, const StepGuard& guard);

  // One update by fused kernels, which read rate, clip factor and t - 1 from state_data() on the
  // device and change nothing when its `finite` is 0. May allocate, but reads nothing back.
  virtual void fused_update() = 0;
  // The same by small ops, with the scalars on the host: now.step is t. Called only for finite
  // steps. Updates `values`, placed by arena().layout().values; step() then writes them to the
  // arena.
  virtual void naive_update(const Tensor& values, double clip, const kernels::StepState& now) = 0;

  // Zeros in the layout of the arena's trainable range. An error where ranks share out the arena.
  Tensor zeros_like_gradients(const char* name) const;
  kernels::StepState* state_data() const;
  ParameterArena& arena() const { return arena_; }

 private:
  void fused_step(const Tensor& loss);
  void naive_step(const Tensor& loss);

  ParameterArena& arena_;
  StepGuard guard_;
  Tensor state_, partials_;
  bool fills_norm_ = true, updating_ = false;
};

}  // namespace quern
