#include "nn/attention.h"

#include "autograd/ops/attention.h"
#include "autograd/ops/attention_qkv.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/split.h"
#include "autograd/ops/view.h"
#include "autograd/tape.h"

namespace quern {

namespace {

int64_t qkv_width(const ModelConfig& config) {
  return config.q_width() + 2 * config.kv_width();
}

// Each with its own fan-out: k and v are narrower than q when heads share them.
std::vector<ParameterPart> qkv_parts(const ModelConfig& config, const ModelInit& init) {
  const int64_t q = config.q_width(), kv = config.kv_width();
  const Init q_init = init.projection(config.d_model, q);
  const Init kv_init = init.projection(config.d_model, kv);
  return {{"q_proj.weight", 0, q, q_init},
          {"k_proj.weight", q, kv, kv_init},
          {"v_proj.weight", q + kv, kv, kv_init}};
}

}  // namespace

Attention::Attention(const ModelConfig& config, const ModelOptions& options, const ModelInit& init)
    : heads_(config.heads),
      kv_heads_(config.kv_head_count()),
      head_dim_(config.head_size()),
      options_(options),
      qkv_(config.d_model, qkv_width(config), init.projection(config.d_model, config.q_width()),
           qkv_parts(config, init)),
      output_(config.q_width(), config.d_model, init.residual(config.q_width(), config.d_model)) {}

void Attention::declare(ParameterList& list) {
  list.add("qkv_proj.weight", qkv_.weight);
  list.add("o_proj.weight", output_.weight);
}

Variable Attention::attend(const Variable& q, const Variable& k, const Variable& v) const {
  return options_.attention == AttentionKind::flash ? flash_attention(q, k, v)
                                                    : naive_attention(q, k, v);
}

Variable Attention::operator()(const Variable& x, const RotaryEmbedding& rotary) const {
  const RangeScope range(RangeKind::module, "self_attn");
  const int64_t B = x.dim(0), T = x.dim(1), H = heads_, Hk = kv_heads_, D = head_dim_;
  const Variable qkv = qkv_("qkv_proj", x);
  const bool fused = options_.kernels == KernelKind::fused;
  if (fused && options_.attention == AttentionKind::flash) {
    return output_("o_proj", rope_attention(qkv, H, Hk, D, rotary.table()));
  }
  const std::vector<Variable> parts = split(reshape(qkv, {B, T, H + 2 * Hk, D}), {H, Hk, Hk}, 2);
  const auto rotate = [&](const Variable& heads) {
    return fused ? rope(heads, rotary.table()) : naive_rope(heads, rotary.table());
  };
  const Variable y = attend(rotate(parts[0]), rotate(parts[1]), parts[2]);
  return output_("o_proj", reshape(y, {B, T, H * D}));
}

Variable Attention::decode(const Variable& x, const RotaryEmbedding& rotary, KvCache::Layer& cache,
                           int64_t cache_length) const {
  const RangeScope range(RangeKind::module, "self_attn");
  const NoGrad no_grad;
  const int64_t B = x.dim(0), T = x.dim(1), H = heads_, Hk = kv_heads_, D = head_dim_;
  const std::vector<Variable> parts = split(qkv_("qkv_proj", x), {H * D, Hk * D, Hk * D}, -1);
  const int64_t end = cache_length + T;
  const Variable q = rope(reshape(parts[0], {B, T, H, D}), rotary.table(), {}, cache_length);
  const Variable k = rope(reshape(parts[1], {B, T, Hk, D}), rotary.table(), {}, cache_length);
  copy(cache.k.slice(1, cache_length, end), k.value());
  copy(cache.v.slice(1, cache_length, end), parts[2].value().reshape({B, T, Hk, D}));
  const Variable y = attend(q, cache.k.slice(1, 0, end), cache.v.slice(1, 0, end));
  return output_("o_proj", reshape(y, {B, T, H * D}));
}

}  // namespace quern
