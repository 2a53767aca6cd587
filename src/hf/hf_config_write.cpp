// Writes a model's config.json: a new one, or one based on its source.
#include <string>

#include "hf/hf_config.h"
#include "hf/hf_family.h"
#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/mapped_file.h"

namespace quern {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kConfig = "config.json";
constexpr const char* kGeneration = "generation_config.json";

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    default: fail(cat("config.json: weights of dtype ", dtype, ", expected floating point"));
  }
}

Json scaling_json(const RopeScaling& scaling) {
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
void set_both_spellings(Json& json, const ModelConfig& config, DType dtype) {
  if (config.positions == PositionKind::rope) {
    const Json scaling = scaling_json(config.rope_scaling);
    Json parameters = scaling.is_null() ? Json{{"rope_type", "default"}} : scaling;
    parameters["rope_theta"] = config.rope_theta;
    json["rope_parameters"] = parameters;
    json["rope_theta"] = config.rope_theta;
    json["rope_scaling"] = scaling;
  }
  json["dtype"] = torch_name(dtype);
  json["torch_dtype"] = torch_name(dtype);
}

Json token_json(const std::optional<int64_t>& token) {
  return token ? Json(*token) : Json(nullptr);
}

Json llama_config_json(const ModelConfig& config, const HfFamily& family) {
  Json json;
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

Json new_config(const ModelConfig& config, DType dtype, const HfConfigOptions& options) {
  const HfFamily& family = family_of(config);
  Json json{{"architectures", {family.architecture}}, {"model_type", family.model_type}};
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
  Json json{{"_from_model_config", true}};
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
  QUERN_CHECK(found == config, (source / kConfig).string(), ": is of another model than ",
              "the exported weights");
  if (read_hf_dtype(source) == dtype && !shorter) {
    return std::string(MappedFile::open(source / kConfig).text());
  }
  Json json = read_json_object(source / kConfig);
  if (shorter) json["n_positions"] = config.context;
  if (shorter && json.contains("n_ctx"))
    json["n_ctx"] = config.context;  // OpenAI's files have both
  set_both_spellings(json, config, dtype);
  return json.dump(2) + "\n";
}

}  // namespace

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
