// The feed-forward part of a block.
#pragma once

#include <memory>

#include "autograd/host_stash.h"
#include "autograd/ops/linear.h"
#include "model/decode_weights.h"
#include "model/model_config.h"
#include "nn/linear.h"

namespace quern {

class Mlp : public Layer {  // (..., C) -> (..., C)
 public:
  // forward(x). With a stash, the input of the activation function waits for the backward in the
  // host's memory. An MLP that does not override this ignores the stash.
  virtual Variable run(const Variable& x, const std::shared_ptr<HostStash>& /*stash*/) const {
    return forward(x);
  }

  // Adds its weights to those of the fused decoder; false if the decoder does not support it.
  virtual bool add_to(BlockWeights&) const { return false; }
};

// down(silu(gate(x)) * up(x)). gate and up are one projection.
class SwiGLU : public Mlp {
 public:
  SwiGLU(const ModelConfig& config, const ModelOptions& options, const ModelInit& init);

  Variable forward(const Variable& x) const override { return run(x, nullptr); }
  Variable run(const Variable& x, const std::shared_ptr<HostStash>& stash) const override;
  bool add_to(BlockWeights& weights) const override;
  void declare(ParameterList& list) override;

 private:
  KernelKind kernels_;
  ActivationOutput output_;
  Linear gate_up_;  // C -> 2 F
  Linear down_;     // F -> C
};

// GPT-2's: down(gelu(up(x))), with GELU's tanh form.
class GeluMlp : public Mlp {
 public:
  GeluMlp(const ModelConfig& config, const ModelOptions& options, const ModelInit& init);

  Variable forward(const Variable& x) const override { return run(x, nullptr); }
  Variable run(const Variable& x, const std::shared_ptr<HostStash>& stash) const override;
  void declare(ParameterList& list) override;

 private:
  KernelKind kernels_;
  ActivationOutput output_;
  Linear up_;    // C -> F
  Linear down_;  // F -> C
};

// The kind that config.mlp names.
std::unique_ptr<Mlp> make_mlp(const ModelConfig& config, const ModelOptions& options,
                              const ModelInit& init);

}  // namespace quern
