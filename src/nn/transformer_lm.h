// The model: token embedding, pre-norm blocks, final norm, LM head. Parameter names are Hugging
// Face's Llama names.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/embedding.h"
#include "nn/transformer_block.h"

namespace quern {

class TransformerLM : public Module {
 public:
  // Throws when the configuration cannot be built. Needs the Context that it will compute on. Build
  // a ParameterArena before the first call.
  TransformerLM(const ModelConfig& config, const ModelOptions& options,
                InitScheme init = InitScheme::normal);

  // Mean cross-entropy (nats a token) of targets (B, T) given tokens (B, T), both i32, times scale.
  // -> (), FP32. With gradients on, zero them before, and use the loss for backward(loss) alone:
  // fused kernels add the head's gradient here already (autograd/ops/lm_head.h).
  Variable loss(const Tensor& tokens, const Tensor& targets, double scale = 1.0) const;
  // (B, T) -> (B, T, V) in the activations' type.
  Variable logits(const Tensor& tokens) const;

  // Generation: an empty cache, and the logits (B, V) that follow `tokens` (B, T) after what the
  // cache holds. Throws when the cache is full.
  KvCache make_cache(int64_t batch, int64_t capacity) const;
  Tensor decode(const Tensor& tokens, KvCache& cache) const;

  void declare(ParameterList& list) override;
  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }

 private:
  friend class DecodeStep;                      // reads the weights
  Variable embed(const Tensor& tokens) const;   // (B, T) -> (B, T, C)
  Variable project(const Variable& h) const;    // (..., C) -> logits (..., V)
  Variable hidden(const Tensor& tokens) const;  // (B, T) -> (B, T, C), normed
  Residual run_blocks(const Residual& in, size_t begin, size_t end) const;
  const Parameter& head() const;  // (V, C)

  ModelConfig config_;
  ModelOptions options_;
  Embedding embedding_;
  std::vector<std::unique_ptr<TransformerBlock>> blocks_;
  RMSNorm norm_;
  std::optional<Parameter> head_;  // absent when tied to the embedding
  std::unique_ptr<RotaryEmbedding> rotary_;
};

}  // namespace quern
