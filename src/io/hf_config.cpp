#include "io/hf_config.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/json_file.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// An object of the file whose members are read by type. A member that is null counts as absent.
struct Members {
  std::string path;
  Json json;

  const Json* find(const char* key) const {
    const auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(const char* key, const Json& value, const char* expected) const {
    fail(cat(path, ": ", key, " is ", value.dump(), ", expected ", expected));
  }

  int64_t count(const char* key) const {
    const Json* value = find(key);
    QUERN_CHECK(value, path, ": has no ", key);
    constexpr uint64_t kMost = std::numeric_limits<int32_t>::max();
    const bool usable = value->is_number_unsigned() && value->get<uint64_t>() >= 1 &&
                        value->get<uint64_t>() <= kMost;
    if (!usable) refuse(key, *value, "a whole number from 1 to 2147483647");
    return value->get<int64_t>();
  }
  int64_t count_or(const char* key, int64_t absent) const {
    return find(key) ? count(key) : absent;
  }
  double number_or(const char* key, double absent) const {
    const Json* value = find(key);
    if (value && !value->is_number()) refuse(key, *value, "a number");
    return value ? value->get<double>() : absent;
  }
  bool flag_or(const char* key, bool absent) const {
    const Json* value = find(key);
    if (value && !value->is_boolean()) refuse(key, *value, "true or false");
    return value ? value->get<bool>() : absent;
  }

  void expect(const char* key, const char* only, bool required = false) const {
    const Json* value = find(key);
    QUERN_CHECK(value || !required, path, ": has no ", key);
    if (value && *value != only) refuse(key, *value, cat("\"", only, "\"").c_str());
  }
};

void refuse_unsupported(const Members& config) {
  config.expect("model_type", "llama", true);
  config.expect("hidden_act", "silu");
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.flag_or(key, false)) config.refuse(key, true, "false (Quern's layers have no bias)");
  }
  const Json* window = config.find("sliding_window");
  if (window && config.flag_or("use_sliding_window", true)) {
    config.refuse("sliding_window", *window, "null (attention is over the whole context)");
  }
  if (const Json* quantized = config.find("quantization_config")) {
    config.refuse("quantization_config", *quantized, "no quantised weights");
  }
}

// rope_parameters is the new place; rope_theta at the top and rope_scaling are the old ones.
double read_rope_theta(const Members& config) {
  double theta = config.number_or("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = config.find(key);
    if (!value) continue;
    if (!value->is_object()) config.refuse(key, *value, "an object");
    const Members rope{cat(config.path, ": ", key), *value};
    rope.expect("rope_type", "default");
    rope.expect("type", "default");
    if (rope.number_or("partial_rotary_factor", 1.0) != 1.0) {
      rope.refuse("partial_rotary_factor", *rope.find("partial_rotary_factor"), "1");
    }
    theta = rope.number_or("rope_theta", theta);
  }
  return theta;
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: fail(cat("config.json: weights of dtype ", dtype, ", expected floating point"));
  }
}

}  // namespace

ModelConfig read_hf_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const Members json{path.string(), read_json_object(path)};
  refuse_unsupported(json);

  ModelConfig config;
  config.vocab_size = json.count("vocab_size");
  config.d_model = json.count("hidden_size");
  config.d_ff = json.count("intermediate_size");
  config.layers = json.count("num_hidden_layers");
  config.heads = json.count("num_attention_heads");
  // The defaults are those of transformers' LlamaConfig.
  config.context = json.count_or("max_position_embeddings", 2048);
  config.kv_heads = json.count_or("num_key_value_heads", config.heads);
  config.head_dim = json.count_or("head_dim", config.d_model / config.heads);
  config.tied = json.flag_or("tie_word_embeddings", false);
  config.norm_eps = json.number_or("rms_norm_eps", 1e-6);
  config.rope_theta = read_rope_theta(json);
  if (config.kv_heads == config.heads) config.kv_heads = 0;
  if (config.head_dim * config.heads == config.d_model) config.head_dim = 0;
  try {
    config.validate();
  } catch (const Error& error) {
    fail(cat(path.string(), ": ", error.what()));
  }
  return config;
}

void write_hf_config(const fs::path& folder, const ModelConfig& config, DType dtype,
                     std::optional<int64_t> end_token) {
  const Json end = end_token ? Json(*end_token) : Json(nullptr);
  const Json json{
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.d_model},
      {"intermediate_size", config.d_ff},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_head_count()},
      {"head_dim", config.head_size()},
      {"max_position_embeddings", config.context},
      {"rms_norm_eps", config.norm_eps},
      {"rope_parameters", Json{{"rope_theta", config.rope_theta}, {"rope_type", "default"}}},
      {"rope_theta", config.rope_theta},
      {"tie_word_embeddings", config.tied},
      {"hidden_act", "silu"},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"attention_dropout", 0.0},
      {"bos_token_id", nullptr},  // LlamaConfig's own defaults would be 1 and 2
      {"eos_token_id", end},
      {"pad_token_id", nullptr},
      {"use_cache", true},
      {"dtype", torch_name(dtype)},
      {"torch_dtype", torch_name(dtype)}};
  Json generation{{"_from_model_config", true}};
  if (end_token) generation["eos_token_id"] = end;
  write_file_atomically(folder / "config.json", json.dump(2) + "\n");
  write_file_atomically(folder / "generation_config.json", generation.dump(2) + "\n");
}

}  // namespace quern
