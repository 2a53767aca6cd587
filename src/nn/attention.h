// Multi-head attention with rotary positions; grouped-query when kv_heads < heads. q, k and v are
// one projection.
#pragma once

#include "nn/kv_cache.h"
#include "nn/linear.h"
#include "nn/model_config.h"
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
  Variable attend(const Variable& q, const Variable& k, const Variable& v) const;

  int64_t heads_, kv_heads_, head_dim_;
  ModelOptions options_;
  Linear qkv_;     // C -> (H + 2 Hk) D
  Linear output_;  // H D -> C
};

}  // namespace quern
