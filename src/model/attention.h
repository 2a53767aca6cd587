// Multi-head attention, grouped-query when kv_heads < heads. One projection gives q, k and v. It
// has biases in Qwen2.5 and GPT-2, and in GPT-2 the output projection has them too. In Qwen3 each
// head of q and of k is normed before its rotation.
#pragma once

#include <optional>

#include "autograd/ops/rope.h"
#include "model/decode_weights.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"

namespace quern {

// Names of attention's modules and weights, as in the Hugging Face family.
struct AttentionNames {
  const char *module, *qkv, *output;
  bool parts;  // whether files hold q, k and v separately, as q_proj, k_proj and v_proj
};
inline constexpr AttentionNames kLlamaAttention{"self_attn", "qkv_proj", "o_proj", true};

class Attention : public Module {
 public:
  Attention(const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
            const AttentionNames& names = kLlamaAttention);

  // Causal. x (B, T, C) -> (B, T, C). Rotates q and k by `table` unless it is null.
  Variable operator()(const Variable& x, const RopeTable* table) const;
  // The same for tokens at positions cache_length, cache_length + 1, ...; appends their keys and
  // values to the cache. No gradient.
  Variable decode(const Variable& x, const RopeTable* table, KvCache::Layer& cache,
                  int64_t cache_length) const;
  KvCache::Layer make_cache(int64_t batch, int64_t capacity, DType dtype) const;
  // FLOPs per token of the causal scores and weighted values over `context` tokens.
  double mixing_flops(int64_t context) const;
  void add_to(BlockWeights& weights) const;
  void declare(ParameterList& list) override;

 private:
  // The inputs of attention before the rotation: q (B, T, H, D), k and v (B, T, Hk, D).
  struct Heads {
    Variable q, k, v;
  };
  Heads project(const Variable& x) const;
  Variable attend(const Variable& q, const Variable& k, const Variable& v) const;

  AttentionNames names_;
  int64_t heads_, kv_heads_, head_dim_;
  ModelOptions options_;
  Linear qkv_;                              // C -> (H + 2 Hk) D
  Linear output_;                           // H D -> C
  std::optional<RMSNorm> q_norm_, k_norm_;  // over D, where heads are normed
};

}  // namespace quern
