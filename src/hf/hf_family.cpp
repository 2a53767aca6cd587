#include "hf/hf_family.h"

#include "model/architecture.h"

namespace quern {

namespace {

constexpr HfFamily kFamilies[] = {
    {"llama", "LlamaForCausalLM", false, false, false, 2048, 0, 0},
    {"mistral", "MistralForCausalLM", false, false, false, 131072, 8, 0},
    {"qwen2", "Qwen2ForCausalLM", true, false, true, 32768, 32, 0},
    {"qwen3", "Qwen3ForCausalLM", false, true, true, 32768, 32, 128},
    {"gpt2", "GPT2LMHeadModel", false, false, false, 1024, 0, 0, true},
};

bool is_gpt2(const ModelConfig& config) {
  return config.bias && config.norm == NormKind::layer && config.mlp == MlpKind::gelu &&
         config.positions == PositionKind::learned && config.kv_head_count() == config.heads &&
         config.q_width() == config.d_model;
}

}  // namespace

const HfFamily& family_named(const HfMembers& config) {
  const std::string type = config.text("model_type");
  for (const HfFamily& family : kFamilies) {
    if (type == family.model_type) return family;
  }
  config.refuse("model_type", R"(one of "llama", "mistral", "qwen2", "qwen3", "gpt2")");
}

const HfFamily& family_of(const ModelConfig& config) {
  const bool llama = &architecture_of(config) == &kLlama;
  for (const HfFamily& family : kFamilies) {
    const bool same = family.qkv_bias == config.qkv_bias && family.qk_norm == config.qk_norm;
    if (same && (family.gpt2 ? is_gpt2(config) : llama)) return family;
  }
  QUERN_CHECK(llama, "config.json: no family of transformers has the model's norm, mlp, ",
              "positions and bias together, expected those of Llama or of GPT-2");
  fail(
      "config.json: the model has biases of q, k and v (qkv_bias) and norms of q and k (qk_norm), "
      "expected one of the two: no family of transformers has both");
}

void apply_family(ModelConfig& config, const HfFamily& family) {
  config.qkv_bias = family.qkv_bias;
  config.qk_norm = family.qk_norm;
}

}  // namespace quern
