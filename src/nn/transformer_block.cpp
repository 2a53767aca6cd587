#include "nn/transformer_block.h"

#include "tensor/context.h"

namespace quern {

DType activation_type(const ModelOptions& options) {
  return options.precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

DType residual_type(const ModelOptions& options) {
  return options.residual == ResidualType::bf16 ? activation_type(options) : DType::f32;
}

TransformerBlock::TransformerBlock(const ModelConfig& config, const ModelOptions& options,
                                   const ModelInit& init, std::string name)
    : name_(std::move(name)),
      activation_(activation_type(options)),
      attention_norm_(config.d_model, config.norm_eps, options, "input_layernorm"),
      attention_(config, options, init),
      mlp_norm_(config.d_model, config.norm_eps, options, "post_attention_layernorm"),
      mlp_(config.d_model, config.d_ff, options, init) {}

void TransformerBlock::declare(ParameterList& list) {
  list.add("input_layernorm", attention_norm_);
  list.add("self_attn", attention_);
  list.add("post_attention_layernorm", mlp_norm_);
  list.add("mlp", mlp_);
}

template <class Attend>
Residual TransformerBlock::run(const Residual& in, const Attend& attend) const {
  const RangeScope range(RangeKind::module, name_.c_str());
  Variable x = in.x, h;
  if (in.branch.defined()) {
    std::tie(x, h) = attention_norm_.add_and_norm(in.x, in.branch);
  } else {
    h = attention_norm_(in.x, activation_);
  }
  std::tie(x, h) = mlp_norm_.add_and_norm(x, attend(h));
  return {x, mlp_(h)};
}

Residual TransformerBlock::operator()(const Residual& in, const RotaryEmbedding& rotary) const {
  return run(in, [&](const Variable& h) { return attention_(h, rotary); });
}

Residual TransformerBlock::decode(const Residual& in, const RotaryEmbedding& rotary,
                                  KvCache::Layer& cache, int64_t cache_length) const {
  return run(in,
             [&](const Variable& h) { return attention_.decode(h, rotary, cache, cache_length); });
}

}  // namespace quern
