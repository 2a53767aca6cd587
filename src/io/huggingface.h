// Hugging Face model folders of type "llama": config.json (hf_config.h), and model.safetensors or
// several shards with model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "io/hf_config.h"
#include "io/safetensors.h"
#include "nn/model_config.h"

namespace quern {

// The tensors of a model folder, found by name across shards.
class TensorSource {
 public:
  // Opens every shard. Throws naming the file when one is missing or malformed, or when the index
  // lists a tensor that its shard has not.
  static TensorSource open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  // Throws naming the folder when the tensor is not there. Valid as long as this object.
  TensorView tensor(const std::string& name) const;
  // Also throws when its shape is not the one expected.
  TensorView tensor(const std::string& name, const Shape& expected) const;

 private:
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> shards_;
  std::unordered_map<std::string, size_t> shard_of_;
};

// The name and shape of every weight of the model, in forward order; no lm_head when it is tied.
std::vector<std::pair<std::string, Shape>> hf_weights(const ModelConfig& config);

// Writes config.json, generation_config.json and model.safetensors, making the folder if needed.
// All weights have one dtype. A tied head (lm_head.weight) is left out, as transformers does.
// Throws when a weight of the model is missing, has another shape, or a name is not the model's.
void export_hf(const std::filesystem::path& folder, const ModelConfig& config,
               std::span<const TensorView> weights, std::optional<int64_t> end_token = {});

}  // namespace quern
