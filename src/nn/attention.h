// Multi-head attention with rotary positions; grouped-query when kv_heads < heads. q, k and v are
// one projection, with biases where the model has them (Qwen2.5); each head of q and of k may be
// normed before it is rotated (Qwen3).
#pragma once

#include <optional>

#include "nn/kv_cache.h"
#include "nn/linear.h"
#include "nn/model_config.h"
#include "nn/rms_norm.h"
#include "nn/rotary_embedding.h"

namespace quern {

class Attention : public Module {
 public:
  Attention(const ModelConfig& config, const ModelOptions& options, const ModelInit& init);

  // Causal. x (B, T, C) -> (B, T, C).
  Variable operator()(const Variable& x, const RotaryEmbedding& rotary) const;
  // The same for tokens at positions cache_length ..., whose keys and values are added to the
  // cache. No gradient.
  Variable decode(const Variable& x, const RotaryEmbedding& rotary, KvCache::Layer& cache,
                  int64_t cache_length) const;
  void declare(ParameterList& list) override;

 private:
  friend class DecodeStep;  // reads the weights
  // What attention takes, before the rotation: q (B, T, H, D), k and v (B, T, Hk, D).
  struct Heads {
    Variable q, k, v;
  };
  Heads project(const Variable& x) const;
  Variable attend(const Variable& q, const Variable& k, const Variable& v) const;

  int64_t heads_, kv_heads_, head_dim_;
  ModelOptions options_;
  Linear qkv_;                              // C -> (H + 2 Hk) D
  Linear output_;                           // H D -> C
  std::optional<RMSNorm> q_norm_, k_norm_;  // over D, with qk_norm
};

}  // namespace quern
