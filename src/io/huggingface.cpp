#include "io/huggingface.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "data/mapped_file.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

// Tensor -> shard file. nlohmann would keep the last of two entries of one name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  std::unordered_set<std::string> names;
  const auto refuse_duplicates = [&](int depth, nlohmann::json::parse_event_t event,
                                     nlohmann::json& parsed) {
    if (depth == 2 && event == nlohmann::json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      QUERN_CHECK(names.insert(name).second, path.string(), ": lists tensor '", name, "' twice");
    }
    return true;
  };
  nlohmann::json index;
  try {
    index = nlohmann::json::parse(text, text + file.bytes().size(), refuse_duplicates);
  } catch (const nlohmann::json::exception& error) {
    fail(cat(path.string(), ": is not valid JSON: ", error.what()));
  }
  const auto map = index.find("weight_map");
  QUERN_CHECK(map != index.end() && map->is_object(), path.string(),
              ": has no weight_map from tensors to files");
  std::map<std::string, std::string> shards;
  for (const auto& [tensor, shard] : map->items()) {
    QUERN_CHECK(shard.is_string(), path.string(), ": file of tensor '", tensor,
                "' is not a string");
    const auto name = shard.get<std::string>();
    QUERN_CHECK(!name.empty() && fs::path(name).filename() == name && name != "..", path.string(),
                ": tensor '", tensor, "' is in '", name, "', expected a file of the same folder");
    shards[tensor] = name;
  }
  return shards;
}

// What to say of a folder without weights that Quern reads.
[[noreturn]] void refuse_weights(const fs::path& folder) {
  std::error_code ignored;  // a file that cannot be seen is not spoken of
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                           "flax_model.msgpack", "consolidated.00.pth"}) {
    QUERN_CHECK(!fs::exists(folder / name, ignored), folder.string(), ": has its weights in ", name,
                ", expected safetensors; transformers' save_pretrained writes them");
  }
  fail(cat(folder.string(), ": has neither ", kSingle, " nor ", kIndex));
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
  if (!fs::exists(folder / kIndex, ignored)) refuse_weights(folder);
  const std::map<std::string, std::string> index = read_index(folder / kIndex);
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : index) files[file].push_back(tensor);
  for (const auto& [file, tensors] : files) {
    QUERN_CHECK(fs::exists(folder / file, ignored), (folder / file).string(),
                ": shard is missing; ", kIndex, " lists it for ", tensors.size(), " tensors");
    const SafetensorsFile& shard =
        source.shards_.emplace_back(SafetensorsFile::open(folder / file));
    for (const std::string& tensor : tensors) {
      QUERN_CHECK(shard.contains(tensor), shard.path().string(), ": has no tensor '", tensor,
                  "', but ", kIndex, " says so");
    }
    for (const auto& entry : shard.entries()) {
      const auto listed = index.find(entry.name);
      QUERN_CHECK(listed != index.end(), (folder / file).string(), ": holds tensor '", entry.name,
                  "', which ", kIndex, " does not list");
      QUERN_CHECK(listed->second == file, (folder / file).string(), ": holds tensor '", entry.name,
                  "', which ", kIndex, " says is in ", listed->second);
      source.shard_of_[entry.name] = source.shards_.size() - 1;
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
    weights.push_back({block + ".input_layernorm.weight", {C}});
    for (const auto& [name, width] : {std::pair{"q_proj", Q}, {"k_proj", K}, {"v_proj", K}}) {
      weights.push_back({cat(block, ".self_attn.", name, ".weight"), {width, C}});
      if (config.qkv_bias) weights.push_back({cat(block, ".self_attn.", name, ".bias"), {width}});
    }
    if (config.qk_norm) {
      weights.push_back({block + ".self_attn.q_norm.weight", {config.head_size()}});
      weights.push_back({block + ".self_attn.k_norm.weight", {config.head_size()}});
    }
    weights.insert(weights.end(), {{block + ".self_attn.o_proj.weight", {C, Q}},
                                   {block + ".post_attention_layernorm.weight", {C}},
                                   {block + ".mlp.gate_proj.weight", {F, C}},
                                   {block + ".mlp.up_proj.weight", {F, C}},
                                   {block + ".mlp.down_proj.weight", {C, F}}});
  }
  weights.push_back({"model.norm.weight", {C}});
  if (!config.tied) weights.push_back({kHead, {V, C}});
  return weights;
}

bool is_spare_tensor(const std::string& name, bool tied, const std::string& where,
                     const std::function<TensorView(const std::string&)>& find) {
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (name != kHead || !tied) return false;
  const TensorView head = find(kHead), embedding = find(kEmbedding);
  QUERN_CHECK(head.dtype == embedding.dtype && head.shape == embedding.shape &&
                  std::ranges::equal(head.data, embedding.data),
              where, ": tensor '", kHead, "' differs from '", kEmbedding,
              "', expected equal ones or none: the model's head is tied");
  return true;
}

std::vector<TensorView> model_weights(const TensorSource& source, const ModelConfig& config) {
  const std::string where = source.folder().string();
  const auto tensors = static_cast<int64_t>(source.names().size());
  QUERN_CHECK(config.layers <= tensors, (source.folder() / "config.json").string(),
              ": num_hidden_layers is ", config.layers, ", but the weights are ", tensors,
              " tensors in all");
  std::vector<TensorView> weights;
  std::unordered_set<std::string> expected;
  for (const auto& [name, shape] : hf_weights(config)) {
    QUERN_CHECK(source.contains(name) || name != kHead, where, ": has no tensor '", kHead,
                "', expected one: config.json does not say tie_word_embeddings");
    const TensorView& view = weights.emplace_back(source.tensor(name, shape));
    QUERN_CHECK(is_floating(view.dtype), where, ": tensor '", name, "' is ", view.dtype,
                ", expected f32, bf16, f16 or f64");
    expected.insert(name);
  }
  const auto find = [&](const std::string& name) { return source.tensor(name); };
  for (const std::string& name : source.names()) {
    QUERN_CHECK(expected.contains(name) || is_spare_tensor(name, config.tied, where, find), where,
                ": tensor '", name, "' is not one of the model's");
  }
  return weights;
}

}  // namespace quern
