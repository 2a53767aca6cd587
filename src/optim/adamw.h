// AdamW (Loshchilov and Hutter, 2019) with global-norm clipping over the parameter arena.
#pragma once

#include <vector>

#include "kernels/optimizer.h"
#include "nn/arena.h"

namespace quern {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  // of parameters whose group decays: matrices by default
  double clip = 1.0;          // largest gradient norm; 0: no clipping
  KernelKind kernels = KernelKind::fused;
  // After a step that was skipped because of a non-finite value, skip all others too: the weights
  // stay those of the last finite state until the host has looked.
  bool halt_on_nonfinite = false;
};

class AdamW {
 public:
  // The arena must have been built for training, and outlive this.
  AdamW(ParameterArena& arena, const AdamWOptions& options);

  // Of the steps to come. In device memory: a captured step reads the rate of its replay.
  void set_learning_rate(double lr);

  // Clips the arena's gradients (as a factor; they are not changed) and updates values, moments and
  // BF16 copies. When the gradient norm or `loss` (one FP32 element; may be undefined) is not
  // finite nothing changes but the count of skipped steps. With fused kernels nothing is read back
  // and the step can be captured: three launches.
  void step(const Tensor& loss = {});
  void step(double lr, const Tensor& loss = {}) {
    set_learning_rate(lr);
    step(loss);
  }

  kernels::StepState state() const;  // waits for the device
  void set_progress(int64_t step, int64_t skipped);
  const Tensor& device_state() const { return state_; }  // u8, one kernels::StepState

 private:
  void fused_step(const Tensor& loss);
  void naive_step(const Tensor& loss);
  kernels::StepState* state_data() const;

  ParameterArena& arena_;
  AdamWOptions options_;
  Tensor state_;
  std::vector<kernels::AdamWRange> runs_;  // of parameters with one treatment, sorted
  Tensor ranges_;                          // u8, the same on the device
  Tensor scratch_;
};

}  // namespace quern
