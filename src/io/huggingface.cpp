#include "io/huggingface.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json_file.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";

// Shard file -> names of its tensors.
std::map<std::string, std::vector<std::string>> read_index(const fs::path& path) {
  const nlohmann::ordered_json index = read_json_object(path);
  const auto map = index.find("weight_map");
  QUERN_CHECK(map != index.end() && map->is_object(), path.string(),
              ": has no weight_map from tensors to files");
  std::map<std::string, std::vector<std::string>> shards;
  for (const auto& [tensor, file] : map->items()) {
    QUERN_CHECK(file.is_string(), path.string(), ": file of tensor '", tensor, "' is not a string");
    const auto name = file.get<std::string>();
    QUERN_CHECK(!name.empty() && fs::path(name).filename() == name && name != "..", path.string(),
                ": tensor '", tensor, "' is in '", name, "', expected a file of the same folder");
    shards[name].push_back(tensor);
  }
  return shards;
}

// Missing weights first (in forward order), then foreign ones.
void check_weights(const ModelConfig& config, std::span<const TensorView> weights) {
  std::map<std::string, const TensorView*> by_name;
  for (const TensorView& weight : weights) by_name[weight.name] = &weight;
  for (const auto& [name, shape] : hf_weights(config)) {
    const auto found = by_name.find(name);
    QUERN_CHECK(found != by_name.end(), "export: weight '", name, "' is missing");
    QUERN_CHECK(found->second->shape == shape, "export: weight '", name, "' has shape ",
                found->second->shape, ", expected ", shape);
    QUERN_CHECK(found->second->dtype == weights[0].dtype, "export: weight '", name, "' is ",
                found->second->dtype, ", expected ", weights[0].dtype, " as the others");
    by_name.erase(found);
  }
  QUERN_CHECK(by_name.empty(), "export: '", by_name.begin()->first,
              "' is not a weight of the model");
}

}  // namespace

TensorSource TensorSource::open(const fs::path& folder) {
  TensorSource source;
  source.folder_ = folder;
  std::error_code ignored;  // a file that cannot be seen is reported as missing
  if (fs::exists(folder / kSingle, ignored)) {
    source.shards_.push_back(SafetensorsFile::open(folder / kSingle));
    for (const auto& entry : source.shards_[0].entries()) source.shard_of_[entry.name] = 0;
    return source;
  }
  QUERN_CHECK(fs::exists(folder / kIndex, ignored), folder.string(), ": has neither ", kSingle,
              " nor ", kIndex);
  for (const auto& [file, tensors] : read_index(folder / kIndex)) {
    QUERN_CHECK(fs::exists(folder / file, ignored), (folder / file).string(),
                ": shard is missing; ", kIndex, " lists it for ", tensors.size(), " tensors");
    const SafetensorsFile& shard =
        source.shards_.emplace_back(SafetensorsFile::open(folder / file));
    for (const std::string& tensor : tensors) {
      QUERN_CHECK(shard.contains(tensor), shard.path().string(), ": has no tensor '", tensor,
                  "', but ", kIndex, " says so");
      source.shard_of_[tensor] = source.shards_.size() - 1;
    }
  }
  return source;
}

std::vector<std::string> TensorSource::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

TensorView TensorSource::tensor(const std::string& name) const {
  const auto found = shard_of_.find(name);
  QUERN_CHECK(found != shard_of_.end(), folder_.string(), ": has no tensor '", name, "'");
  return shards_[found->second].tensor(name);
}

TensorView TensorSource::tensor(const std::string& name, const Shape& expected) const {
  TensorView view = tensor(name);
  QUERN_CHECK(view.shape == expected, shards_[shard_of_.at(name)].path().string(), ": tensor '",
              name, "' has shape ", view.shape, ", expected ", expected);
  return view;
}

std::vector<std::pair<std::string, Shape>> hf_weights(const ModelConfig& config) {
  const int64_t V = config.vocab_size, C = config.d_model, F = config.d_ff;
  const int64_t Q = config.q_width(), K = config.kv_width();
  std::vector<std::pair<std::string, Shape>> weights{{"model.embed_tokens.weight", {V, C}}};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "model.layers." + std::to_string(layer);
    weights.insert(weights.end(), {{block + ".input_layernorm.weight", {C}},
                                   {block + ".self_attn.q_proj.weight", {Q, C}},
                                   {block + ".self_attn.k_proj.weight", {K, C}},
                                   {block + ".self_attn.v_proj.weight", {K, C}},
                                   {block + ".self_attn.o_proj.weight", {C, Q}},
                                   {block + ".post_attention_layernorm.weight", {C}},
                                   {block + ".mlp.gate_proj.weight", {F, C}},
                                   {block + ".mlp.up_proj.weight", {F, C}},
                                   {block + ".mlp.down_proj.weight", {C, F}}});
  }
  weights.push_back({"model.norm.weight", {C}});
  if (!config.tied) weights.push_back({kHead, {V, C}});
  return weights;
}

void export_hf(const fs::path& folder, const ModelConfig& config,
               std::span<const TensorView> weights, std::optional<int64_t> end_token) {
  std::vector<TensorView> kept;
  std::copy_if(weights.begin(), weights.end(), std::back_inserter(kept),
               [&](const TensorView& weight) { return !(config.tied && weight.name == kHead); });
  check_weights(config, kept);
  std::error_code error;
  fs::create_directories(folder, error);
  QUERN_CHECK(!error, folder.string(), ": cannot be created: ", error.message());
  write_hf_config(folder, config, kept[0].dtype, end_token);
  write_safetensors(folder / kSingle, kept, {{"format", "pt"}});
}

}  // namespace quern
