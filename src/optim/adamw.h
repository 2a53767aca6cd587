// AdamW (Loshchilov and Hutter, 2019) with global-norm clipping over the parameter arena.
#pragma once

#include <span>
#include <vector>

#include "optim/optimizer.h"
#include "optim/optimizer_kind.h"

namespace quern {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // for parameters whose group decays: matrices by default
  double clip = 1.0;          // see StepGuard
  KernelKind kernels = KernelKind::fused;
  bool halt_on_nonfinite = false;
  MomentType moments = MomentType::fp32;
  uint64_t seed = 0;  // of the rounding of BF16 moments

  StepGuard guard() const { return {clip, kernels, halt_on_nonfinite}; }
};

// Moments and update of the trainable parameters that a filter selects.
class AdamWMoments {
 public:
  // The arena outlives this.
  AdamWMoments(ParameterArena& arena, const AdamWOptions& options, const ParameterFilter& selects);

  std::vector<OptimizerBuffer> buffers() const;
  const Tensor& first() const { return first_; }  // f32, or bf16
  const Tensor& second() const { return second_; }

  void fused_update(const kernels::StepState* state);  // one launch
  void naive_update(const Tensor& values, double clip, const kernels::StepState& now);

 private:
  void add_run(int64_t begin, int64_t end, const ParameterGroup& group);

  ParameterArena& arena_;
  AdamWOptions options_;
  std::vector<kernels::AdamWRange> runs_;  // of parameters with one treatment, sorted
  Tensor ranges_;                          // u8, the same on the device
  StateLayout layout_;                     // of the moments
  Tensor first_, second_;
};

// AdamW of every trainable parameter, or of a rank's share. A fused step launches the norm,
// the update and the counter.
class AdamW : public Optimizer {
 public:
  AdamW(ParameterArena& arena, const AdamWOptions& options);

  const char* name() const override { return "adamw"; }
  std::vector<OptimizerBuffer> buffers() const override { return moments_.buffers(); }
  const Tensor& moment1() const { return moments_.first(); }  // (trainable), or a share
  const Tensor& moment2() const { return moments_.second(); }

 private:
  void fused_update() override { moments_.fused_update(state_data()); }
  void naive_update(const Tensor& values, double clip, const kernels::StepState& now) override {
    moments_.naive_update(values, clip, now);
  }

  AdamWMoments moments_;
};

// FP32, or BF16 for both moments; one dimension, all of one length, on one device.
struct AdamWTensors {
  Tensor param, m, v, grad;
};

// The naive twin of kernels::adamw (its header has the formula) by small ops, with the clip factor
// and the bias corrections multiplied into the host's scalars. `state` gives lr and t, the number
// of this update from 1 on; only beta1, beta2, eps and seed of `options` are used.
void naive_adamw(const AdamWTensors& tensors, std::span<const kernels::AdamWRange> ranges,
                 const AdamWOptions& options, double clip, const kernels::StepState& state);

}  // namespace quern
