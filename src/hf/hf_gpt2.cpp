// config.json of model_type gpt2.
#include "hf/hf_family.h"

namespace quern {

ModelConfig read_gpt2_config(const HfMembers& file) {
  const std::string activation =
      file.find("activation_function") ? file.text("activation_function") : "gelu_new";
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh") {
    file.refuse("activation_function", R"("gelu_new", GELU's tanh form)");
  }
  if (!file.flag("scale_attn_weights", true)) file.refuse("scale_attn_weights", "true");
  file.only_false("scale_attn_by_inverse_layer_idx", "all layers scale their scores alike");
  file.only_false("add_cross_attention", "there is no encoder");

  ModelConfig config;
  config.vocab_size = file.count_or("vocab_size", 50257);
  config.context = file.count_or("n_positions", 1024);
  config.d_model = file.count_or("n_embd", 768);
  config.d_ff = file.count_or("n_inner", 4 * config.d_model);
  config.layers = file.count_or("n_layer", 12);
  config.heads = file.count_or("n_head", 12);
  config.norm_eps = file.number_or("layer_norm_epsilon", 1e-5);
  config.tied = file.flag("tie_word_embeddings", true);
  config.norm = NormKind::layer;
  config.mlp = MlpKind::gelu;
  config.positions = PositionKind::learned;
  config.bias = true;
  return config;
}

nlohmann::ordered_json gpt2_config_json(const ModelConfig& config) {
  return {{"vocab_size", config.vocab_size},
          {"n_positions", config.context},
          {"n_embd", config.d_model},
          {"n_layer", config.layers},
          {"n_head", config.heads},
          {"n_inner", config.d_ff},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", config.norm_eps},
          {"tie_word_embeddings", config.tied},
          {"resid_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"attn_pdrop", 0.0}};
}

}  // namespace quern
