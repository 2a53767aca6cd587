#include "model/architecture.h"

#include "model/pre_norm_block.h"

namespace quern {

namespace {

constexpr PreNormNames kLlamaBlock{"input_layernorm", "post_attention_layernorm", kLlamaAttention};
constexpr PreNormNames kGpt2Block{"ln_1", "ln_2", {"attn", "c_attn", "c_proj", false}};

template <const PreNormNames& names>
std::unique_ptr<Block> make_block(const ModelConfig& config, const ModelOptions& options,
                                  const ModelInit& init, std::string name) {
  return std::make_unique<PreNormBlock>(config, options, init, std::move(name), names,
                                        make_mlp(config, options, init));
}

}  // namespace

const Architecture kLlama = {
    .embedding = "model.embed_tokens",
    .positions = "model.rotary_emb",
    .blocks = "model.layers",
    .norm = "model.norm",
    .make_block = make_block<kLlamaBlock>,
};

const Architecture kGpt2 = {
    .embedding = "transformer.wte",
    .positions = "transformer.wpe",
    .blocks = "transformer.h",
    .norm = "transformer.ln_f",
    .make_block = make_block<kGpt2Block>,
};

const Architecture& architecture_of(const ModelConfig& config) {
  const bool llama = config.norm == NormKind::rms && config.mlp == MlpKind::swiglu &&
                     config.positions == PositionKind::rope && !config.bias;
  return llama ? kLlama : kGpt2;
}

std::unique_ptr<Positions> make_positions(const ModelConfig& config) {
  if (config.positions == PositionKind::learned) {
    return std::make_unique<LearnedPositions>(config.context, config.d_model, Init::normal(0.02));
  }
  return std::make_unique<RotaryPositions>(config.context, config.head_size(), config.rope_theta,
                                           config.rope_scaling);
}

std::unique_ptr<Norm> make_norm(const ModelConfig& config, const ModelOptions& options,
                                const char* name) {
  return std::make_unique<Norm>(config.norm, config.d_model, config.norm_eps, options, name,
                                config.bias);
}

}  // namespace quern
