#include "hf/hf_config.h"

#include <algorithm>
#include <string>
#include <utility>

#include "hf/hf_family.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/mapped_file.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kGeneration = "generation_config.json";

constexpr std::pair<DType, const char*> kTorchNames[] = {{DType::f32, "float32"},
                                                         {DType::bf16, "bfloat16"},
                                                         {DType::f16, "float16"},
                                                         {DType::f64, "float64"}};

void refuse_experts(const HfMembers& config) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts",
                          "moe_intermediate_size", "num_experts_per_tok"}) {
    const Json* value = config.find(key);
    if (value && *value != 0) config.refuse(key, "none: Quern has no mixtures of experts");
  }
}

void refuse_sliding_windows(const HfMembers& config, const HfFamily& family) {
  const std::string full = "null: attention is over the whole context";
  const std::string type = family.model_type;
  if (type == "mistral") {
    // transformers uses 4096 for an absent key; only null disables the window.
    QUERN_CHECK(config.json.contains("sliding_window"), config.where(),
                ": has no sliding_window, which means 4096 for a Mistral; expected ", full);
    if (config.find("sliding_window")) config.refuse("sliding_window", full);
  } else if (type == "llama") {
    const bool used = config.flag("use_sliding_window", true);
    if (config.find("sliding_window") && used) config.refuse("sliding_window", full);
  } else {
    config.only_false("use_sliding_window", "attention is over the whole context");
  }
  const Json* layers = config.find("layer_types");
  if (!layers) return;
  const auto is_full = [](const Json& layer) { return layer == "full_attention"; };
  if (!layers->is_array() || !std::ranges::all_of(*layers, is_full)) {
    config.refuse("layer_types", "\"full_attention\" for every layer");
  }
}

void refuse_unsupported(const HfMembers& config, const HfFamily& family) {
  refuse_experts(config);
  if (config.find("hidden_act") && config.text("hidden_act") != "silu") {
    config.refuse("hidden_act", "\"silu\"");
  }
  // In Qwen2, model_type implies biases of q, k and v. Elsewhere attention_bias also means o's.
  if (!family.qkv_bias) {
    config.only_false("attention_bias",
                      "only q, k and v may have biases, and do if model_type is \"qwen2\"");
  }
  config.only_false("mlp_bias", "the feed-forward layers have no bias");
  config.only_false("rope_interleaved", "RoPE turns halves");
  refuse_sliding_windows(config, family);
}

void refuse_quantised(const HfMembers& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (config.find(key)) config.refuse(key, "none: Quern reads no quantised weights");
  }
}

// Reads rope_scaling (old spelling) or rope_parameters (new spelling) without its rope_theta.
RopeScaling read_scaling(const HfMembers& rope) {
  const char* key = rope.find("rope_type") ? "rope_type" : "type";
  const std::string type = rope.find(key) ? rope.text(key) : "default";
  if (rope.find("type") && rope.text("type") != type) {
    rope.refuse("type", cat("\"", type, "\", as rope_type says"));
  }
  for (const auto& [name, value] : rope.json.items()) {
    if (value.is_object()) rope.refuse(name.c_str(), "one RoPE for all layers");
  }
  if (rope.find("mrope_section")) rope.refuse("mrope_section", "none");
  rope.only_one("partial_rotary_factor");
  RopeScaling scaling;
  if (type == "default") return scaling;
  if (type != "linear" && type != "llama3") {
    rope.refuse(key, R"(one of "default", "linear", "llama3")");
  }
  scaling.factor = rope.number("factor");
  if (scaling.factor < 1.0) rope.refuse("factor", "at least 1");
  if (type == "linear") {
    scaling.kind = RopeScalingKind::linear;
    return scaling;
  }
  scaling.kind = RopeScalingKind::llama3;
  scaling.low_freq_factor = rope.number("low_freq_factor");
  scaling.high_freq_factor = rope.number("high_freq_factor");
  scaling.original_context = rope.count("original_max_position_embeddings");
  if (scaling.low_freq_factor <= 0.0) rope.refuse("low_freq_factor", "above 0");
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.refuse("high_freq_factor", cat("above low_freq_factor (", scaling.low_freq_factor, ")"));
  }
  return scaling;
}

// Versions of transformers prefer different spellings, so both must agree if a file has two.
void read_rope(const HfMembers& file, ModelConfig& config) {
  std::optional<double> theta;
  std::optional<RopeScaling> scaling;
  const auto add_theta = [&](const HfMembers& place) {
    if (!place.find("rope_theta")) return;
    const double found = place.number("rope_theta");
    if (found <= 0.0) place.refuse("rope_theta", "above 0");
    if (theta && *theta != found) place.refuse("rope_theta", cat(*theta, ", as elsewhere in it"));
    theta = found;
  };
  file.only_one("partial_rotary_factor");
  add_theta(file);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = file.find(key);
    if (value && !value->is_object()) file.refuse(key, "an object");
    if (!value || value->empty()) continue;
    const HfMembers rope{file.object(key)};
    add_theta(rope);
    const RopeScaling found = read_scaling(rope);
    if (scaling && *scaling != found) file.refuse(key, "the same as in rope_scaling");
    scaling = found;
  }
  config.rope_theta = theta.value_or(10000.0);
  config.rope_scaling = scaling.value_or(RopeScaling{});
  const char* original = "original_max_position_embeddings";
  if (config.rope_scaling.kind == RopeScalingKind::llama3 && file.find(original) &&
      file.count(original) != config.rope_scaling.original_context) {
    file.refuse(original, cat(config.rope_scaling.original_context, ", as beside low_freq_factor"));
  }
}

std::optional<DType> weights_dtype(const HfMembers& file) {
  const char* key = file.find("dtype") ? "dtype" : "torch_dtype";
  if (!file.find(key)) return {};
  const std::string name = file.text(key);
  if (file.find("torch_dtype") && file.text("torch_dtype") != name) {
    file.refuse("torch_dtype", cat("\"", name, "\", as dtype says"));
  }
  for (const auto& [dtype, torch] : kTorchNames) {
    if (name == torch) return dtype;
  }
  file.refuse(key, "one of float32, bfloat16, float16, float64");
}

ModelConfig read_llama_config(const HfMembers& file, const HfFamily& family) {
  refuse_unsupported(file, family);
  ModelConfig config;
  for (const auto& [key, member] : kHfCounts) config.*member = file.count(key);
  config.context = file.count_or("max_position_embeddings", family.context);
  const bool null_heads = file.json.contains("num_key_value_heads");  // null: as many as heads
  config.kv_heads = file.count_or("num_key_value_heads", null_heads ? 0 : family.kv_heads);
  config.head_dim = file.count_or("head_dim", family.head_dim);
  config.tied = file.flag("tie_word_embeddings");
  config.norm_eps = file.number_or("rms_norm_eps", 1e-6);
  apply_family(config, family);
  read_rope(file, config);
  if (config.kv_heads == config.heads) config.kv_heads = 0;
  if (config.head_dim * config.heads == config.d_model) config.head_dim = 0;
  return config;
}

const char* torch_name(DType dtype) {
  for (const auto& [known, torch] : kTorchNames) {
    if (known == dtype) return torch;
  }
  fail(cat("config.json: weights of dtype ", dtype, ", expected floating point"));
}

OrderedJson scaling_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScalingKind::none: return nullptr;
    case RopeScalingKind::linear: return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScalingKind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_context}};
  }
  fail("config.json: unknown rope_scaling");
}

// Sets RoPE, if any, and the weights' dtype in both spellings. If a file has rope_scaling,
// transformers 5 uses it and the rope_theta beside it as rope_parameters.
void set_both_spellings(OrderedJson& json, const ModelConfig& config, DType dtype) {
  if (config.positions == PositionKind::rope) {
    const OrderedJson scaling = scaling_json(config.rope_scaling);
    OrderedJson parameters = scaling.is_null() ? OrderedJson{{"rope_type", "default"}} : scaling;
    parameters["rope_theta"] = config.rope_theta;
    json["rope_parameters"] = parameters;
    json["rope_theta"] = config.rope_theta;
    json["rope_scaling"] = scaling;
  }
  json["dtype"] = torch_name(dtype);
  json["torch_dtype"] = torch_name(dtype);
}

OrderedJson token_json(const std::optional<int64_t>& token) {
  return token ? OrderedJson(*token) : OrderedJson(nullptr);
}

OrderedJson llama_config_json(const ModelConfig& config, const HfFamily& family) {
  OrderedJson json;
  for (const auto& [key, member] : kHfCounts) json[key] = config.*member;
  json.update({{"num_key_value_heads", config.kv_head_count()},
               {"head_dim", config.head_size()},
               {"max_position_embeddings", config.context},
               {"rms_norm_eps", config.norm_eps},
               {"tie_word_embeddings", config.tied},
               {"hidden_act", "silu"},
               {"attention_dropout", 0.0}});
  if (family.windows) {
    json["use_sliding_window"] = false;
    json["sliding_window"] = nullptr;
    json["max_window_layers"] = config.layers;
  } else {
    json["mlp_bias"] = false;
  }
  if (!config.qkv_bias) json["attention_bias"] = false;
  return json;
}

OrderedJson new_config(const ModelConfig& config, DType dtype, const HfConfigOptions& options) {
  const HfFamily& family = family_of(config);
  OrderedJson json{{"architectures", {family.architecture}}, {"model_type", family.model_type}};
  json.update(family.gpt2 ? gpt2_config_json(config) : llama_config_json(config, family));
  // The families' defaults are other tokens.
  json.update({{"bos_token_id", token_json(options.begin_token)},
               {"eos_token_id", token_json(options.end_token)},
               {"pad_token_id", nullptr},
               {"use_cache", true}});
  set_both_spellings(json, config, dtype);
  return json;
}

std::string new_generation_config(const HfConfigOptions& options) {
  OrderedJson json{{"_from_model_config", true}};
  if (options.begin_token) json["bos_token_id"] = *options.begin_token;
  if (options.end_token) json["eos_token_id"] = *options.end_token;
  return json.dump(2) + "\n";
}

// The source's text, changed only where it differs from the weights. A run's context may be shorter
// than its source's: with RoPE the model still supports the source's positions; with learned
// positions it has kept only the first ones.
std::string config_from_source(const ModelConfig& config, DType dtype, const fs::path& source) {
  ModelConfig found = read_hf_config(source);
  QUERN_CHECK(config.context <= found.context, (source / kConfig).string(),
              ": max_position_embeddings is ", found.context,
              ", expected at least the model's context of ", config.context);
  const bool shorter = config.context < found.context && config.positions == PositionKind::learned;
  found.context = config.context;
  const auto spelled_out = [](ModelConfig model) {  // 0 and the number it stands for are equal
    model.kv_heads = model.kv_head_count();
    model.head_dim = model.head_size();
    return model;
  };
  QUERN_CHECK(spelled_out(found) == spelled_out(config), (source / kConfig).string(),
              ": is of another model than ", "the exported weights");
  if (read_hf_dtype(source) == dtype && !shorter) {
    return std::string(MappedFile::open(source / kConfig).text());
  }
  OrderedJson json = read_json_object(source / kConfig);
  if (shorter) json["n_positions"] = config.context;
  if (shorter && json.contains("n_ctx"))
    json["n_ctx"] = config.context;  // OpenAI's files have both
  set_both_spellings(json, config, dtype);
  return json.dump(2) + "\n";
}

}  // namespace

ModelConfig read_hf_config(const fs::path& folder) {
  const JsonFile json(folder / kConfig);
  const HfMembers file{json.root()};
  const HfFamily& family = family_named(file);
  refuse_quantised(file);
  weights_dtype(file);  // throws on an unsupported dtype
  const ModelConfig config = family.gpt2 ? read_gpt2_config(file) : read_llama_config(file, family);
  try {
    config.validate();
  } catch (const Error& error) {
    fail(cat(file.path, error.what()));
  }
  return config;
}

std::optional<DType> read_hf_dtype(const fs::path& folder) {
  const JsonFile json(folder / kConfig);
  return weights_dtype({json.root()});
}

void write_hf_config(const fs::path& folder, const ModelConfig& config, DType dtype,
                     const HfConfigOptions& options) {
  if (options.source.empty()) {
    const std::string text = new_config(config, dtype, options).dump(2) + "\n";
    write_file_atomically(folder / kConfig, text);
    write_file_atomically(folder / kGeneration, new_generation_config(options));
    return;
  }
  write_file_atomically(folder / kConfig, config_from_source(config, dtype, options.source));
  if (const fs::path generation = options.source / kGeneration; fs::exists(generation)) {
    copy_file_atomically(generation, folder / kGeneration);
  }
}

}  // namespace quern
