#include "model/attention.h"

#include "autograd/ops/attention.h"
#include "autograd/ops/naive.h"
#include "autograd/ops/split.h"
#include "autograd/ops/view.h"
#include "autograd/tape.h"

namespace quern {

namespace {

int64_t qkv_width(const ModelConfig& config) {
  return config.q_width() + 2 * config.kv_width();
}

// Each part has its own fan-out: k and v are narrower than q when heads share them.
std::vector<ParameterPart> qkv_parts(const ModelConfig& config, const ModelInit& init,
                                     const AttentionNames& names) {
  if (!names.parts) return {};
  const int64_t q = config.q_width(), kv = config.kv_width();
  const Init q_init = init.projection(config.d_model, q);
  const Init kv_init = init.projection(config.d_model, kv);
  return {{"q_proj.weight", 0, q, q_init},
          {"k_proj.weight", q, kv, kv_init},
          {"v_proj.weight", q + kv, kv, kv_init}};
}

std::vector<ParameterPart> bias_parts(const ModelConfig& config, const AttentionNames& names) {
  if (!names.parts) return {};
  const int64_t q = config.q_width(), kv = config.kv_width();
  return {{"q_proj.bias", 0, q}, {"k_proj.bias", q, kv}, {"v_proj.bias", q + kv, kv}};
}

}  // namespace

Attention::Attention(const ModelConfig& config, const ModelOptions& options, const ModelInit& init,
                     const AttentionNames& names)
    : names_(names),
      heads_(config.heads),
      kv_heads_(config.kv_head_count()),
      head_dim_(config.head_size()),
      options_(options),
      qkv_(config.d_model, qkv_width(config), init.projection(config.d_model, config.q_width()),
           qkv_parts(config, init, names), config.qkv_bias || config.bias,
           bias_parts(config, names)),
      output_(config.q_width(), config.d_model, init.residual(config.q_width(), config.d_model),
              config.bias) {
  if (!config.qk_norm) return;
  q_norm_.emplace(head_dim_, config.norm_eps, options, "q_norm");
  k_norm_.emplace(head_dim_, config.norm_eps, options, "k_norm");
}

void Attention::declare(ParameterList& list) {
  const std::string qkv = names_.qkv, output = names_.output;
  list.add(qkv + ".weight", qkv_.weight);
  if (qkv_.bias) list.add(qkv + ".bias", *qkv_.bias);
  if (q_norm_) list.add("q_norm", *q_norm_);
  if (k_norm_) list.add("k_norm", *k_norm_);
  list.add(output + ".weight", output_.weight);
  if (output_.bias) list.add(output + ".bias", *output_.bias);
}

Attention::Heads Attention::project(const Variable& x) const {
  const int64_t B = x.dim(0), T = x.dim(1), H = heads_, Hk = kv_heads_, D = head_dim_;
  const Variable all = reshape(qkv_(names_.qkv, x), {B, T, H + 2 * Hk, D});
  const std::vector<Variable> parts = split(all, {H, Hk, Hk}, 2);
  if (!q_norm_) return {parts[0], parts[1], parts[2]};
  const auto normed = [&](const RMSNorm& norm, const Variable& heads) {
    return norm(contiguous(heads), x.dtype());  // one copy for all ops of the norm
  };
  return {normed(*q_norm_, parts[0]), normed(*k_norm_, parts[1]), parts[2]};
}

Variable Attention::attend(const Variable& q, const Variable& k, const Variable& v) const {
  return options_.attention == AttentionKind::flash ? flash_attention(q, k, v)
                                                    : naive_attention(q, k, v);
}

Variable Attention::operator()(const Variable& x, const RopeTable* table) const {
  const RangeScope range(RangeKind::module, names_.module);
  const bool fused = options_.kernels == KernelKind::fused;
  if (fused && options_.attention == AttentionKind::flash && !q_norm_) {
    const Variable qkv = qkv_(names_.qkv, x);
    return output_(names_.output, table ? rope_attention(qkv, heads_, kv_heads_, head_dim_, *table)
                                        : qkv_attention(qkv, heads_, kv_heads_, head_dim_));
  }
  Heads in = project(x);
  const auto rotate = [&](Variable& heads) {  // frees the heads before the rotation
    if (table) heads = fused ? rope(heads, *table) : naive_rope(heads, *table);
  };
  rotate(in.k);
  rotate(in.q);
  const Variable y = attend(in.q, in.k, in.v);
  return output_(names_.output, reshape(y, {x.dim(0), x.dim(1), heads_ * head_dim_}));
}

Variable Attention::decode(const Variable& x, const RopeTable* table, KvCache::Layer& cache,
                           int64_t cache_length) const {
  const RangeScope range(RangeKind::module, names_.module);
  const NoGrad no_grad;
  const int64_t B = x.dim(0), T = x.dim(1);
  const int64_t end = cache_length + T;
  const Heads heads = project(x);
  const auto rotated = [&](const Variable& x) {
    return table ? rope(x, *table, {}, cache_length) : x;
  };
  const Variable q = rotated(heads.q), k = rotated(heads.k);
  copy(cache.k.slice(1, cache_length, end), k.value());
  copy(cache.v.slice(1, cache_length, end), heads.v.value());
  const Variable y = attend(q, cache.k.slice(1, 0, end), cache.v.slice(1, 0, end));
  return output_(names_.output, reshape(y, {B, T, heads_ * head_dim_}));
}

KvCache::Layer Attention::make_cache(int64_t batch, int64_t capacity, DType dtype) const {
  const Shape shape{batch, capacity, kv_heads_, head_dim_};
  return {Tensor::empty(shape, dtype, "key cache"), Tensor::empty(shape, dtype, "value cache")};
}

// q k^T and p v: 2 FLOPs each per pair of tokens and channel; half of the pairs are masked.
double Attention::mixing_flops(int64_t context) const {
  return 2.0 * 2.0 * static_cast<double>(context * heads_ * head_dim_) / 2.0;
}

void Attention::add_to(BlockWeights& weights) const {
  weights.qkv = &qkv_.weight;
  if (qkv_.bias) weights.qkv_bias = &*qkv_.bias;
  if (q_norm_) weights.q_norm = &q_norm_->weight;
  if (k_norm_) weights.k_norm = &k_norm_->weight;
  weights.output = &output_.weight;
}

}  // namespace quern
