// The model families of Hugging Face transformers that TransformerLM supports, and access to the
// members of their config.json. Only the sources of this folder include this header.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "io/json_file.h"
#include "model/model_config.h"

namespace quern {

// An object of config.json. Errors name a member after the object's path.
struct HfMembers : JsonPlace {
  const nlohmann::json* find(const char* key) const { return has(key) ? &json[key] : nullptr; }
  int64_t count(const char* key) const { return at(key).count(1, INT32_MAX); }
  int64_t count_or(const char* key, int64_t absent) const { return has(key) ? count(key) : absent; }
  double number(const char* key) const { return at(key).number(); }
  double number_or(const char* key, double absent) const { return has(key) ? number(key) : absent; }
  std::string text(const char* key) const { return at(key).text(); }
  void only_one(const char* key) const {
    if (number_or(key, 1.0) != 1.0) refuse(key, "1");
  }
};

struct HfFamily {
  const char* model_type;
  const char* architecture;
  bool qkv_bias, qk_norm;
  bool windows;  // config.json has the keys of Qwen's sliding windows
  // transformers' defaults for absent keys; 0: heads, and hidden_size / heads.
  int64_t context, kv_heads, head_dim;
  bool gpt2 = false;  // config.json has the keys of hf_gpt2.cpp
};

const HfFamily& family_named(const HfMembers& config);           // throws on an unknown type
const HfFamily& family_of(const ModelConfig& config);            // throws if none fits
void apply_family(ModelConfig& config, const HfFamily& family);  // sets qkv_bias and qk_norm

ModelConfig read_gpt2_config(const HfMembers& file);
// A GPT-2's dimensions as members of config.json.
nlohmann::ordered_json gpt2_config_json(const ModelConfig& config);

// The dimensions in the other families' config.json: positive whole numbers.
struct HfCount {
  const char* key;
  int64_t ModelConfig::*member;
};

inline constexpr HfCount kHfCounts[] = {
    {"vocab_size", &ModelConfig::vocab_size},     {"hidden_size", &ModelConfig::d_model},
    {"intermediate_size", &ModelConfig::d_ff},    {"num_hidden_layers", &ModelConfig::layers},
    {"num_attention_heads", &ModelConfig::heads},
};

}  // namespace quern
