#include "model/pre_norm_block.h"

#include "tensor/context.h"

namespace quern {

PreNormBlock::PreNormBlock(const ModelConfig& config, const ModelOptions& options,
                           const ModelInit& init, std::string name, const PreNormNames& names,
                           std::unique_ptr<Mlp> mlp)
    : name_(std::move(name)),
      names_(names),
      activation_(options.activation_type()),
      attention_norm_(config.norm, config.d_model, config.norm_eps, options, names.attention_norm,
                      config.bias),
      attention_(config, options, init, names.attention),
      mlp_norm_(config.norm, config.d_model, config.norm_eps, options, names.mlp_norm, config.bias),
      mlp_(std::move(mlp)) {}

void PreNormBlock::declare(ParameterList& list) {
  list.add(names_.attention_norm, attention_norm_);
  list.add(names_.attention.module, attention_);
  list.add(names_.mlp_norm, mlp_norm_);
  list.add("mlp", *mlp_);
}

template <class Attend>
Residual PreNormBlock::run(const Residual& in, const SharedInputs& shared,
                           const Attend& attend) const {
  const RangeScope range(RangeKind::module, name_.c_str());
  auto [x, h] = add_and_norm(attention_norm_, in, activation_);
  std::tie(x, h) = mlp_norm_.add_and_norm(x, shared.drop(attend(h), 0));
  return {x, shared.drop(mlp_->run(h, shared.stash), 1)};
}

Residual PreNormBlock::forward(const Residual& in, const SharedInputs& shared) const {
  return run(in, shared, [&](const Variable& h) { return attention_(h, shared.rope); });
}

Residual PreNormBlock::decode(const Residual& in, const SharedInputs& shared, KvCache::Layer& cache,
                              int64_t cache_length) const {
  return run(in, shared, [&](const Variable& h) {
    return attention_.decode(h, shared.rope, cache, cache_length);
  });
}

KvCache::Layer PreNormBlock::make_cache(int64_t batch, int64_t capacity) const {
  return attention_.make_cache(batch, capacity, activation_);
}

double PreNormBlock::mixing_flops(int64_t context) const {
  return attention_.mixing_flops(context);
}

std::optional<BlockWeights> PreNormBlock::decode_weights() const {
  BlockWeights weights;
  if (attention_norm_.kind() != NormKind::rms || !mlp_->add_to(weights)) return {};
  weights.attention_norm = &attention_norm_.weight;
  attention_.add_to(weights);
  weights.mlp_norm = &mlp_norm_.weight;
  return weights;
}

}  // namespace quern
