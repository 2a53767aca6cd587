// A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)).
#pragma once

#include "nn/attention.h"
#include "nn/rms_norm.h"
#include "nn/swiglu.h"

namespace quern {

// The residual stream between blocks. `branch` is what the last sublayer computed and nobody has
// added yet: the add is done by the next norm, in the same pass. Undefined before the first block.
struct Residual {
  Variable x;       // (B, T, C) in the stream's type
  Variable branch;  // (B, T, C) in the activations' type
};

class TransformerBlock : public Module {
 public:
  TransformerBlock(const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
                   std::string name);

  Residual operator()(const Residual& in, const RotaryEmbedding& rotary) const;
  Residual decode(const Residual& in, const RotaryEmbedding& rotary, KvCache::Layer& cache,
                  int64_t cache_length) const;
  void declare(ParameterList& list) override;

 private:
  friend class DecodeStep;  // reads the weights
  template <class Attend>
  Residual run(const Residual& in, const Attend& attend) const;

  std::string name_;  // of its range: "model.layers.3"
  DType activation_;
  RMSNorm attention_norm_;
  Attention attention_;
  RMSNorm mlp_norm_;
  SwiGLU mlp_;
};

// The types that activations and the residual stream have under a policy.
DType activation_type(const ModelOptions& options);
DType residual_type(const ModelOptions& options);

}  // namespace quern
