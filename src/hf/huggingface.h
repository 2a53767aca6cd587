// Hugging Face model folders: config.json (hf_config.h), and model.safetensors or several shards
// with model.safetensors.index.json. hf_export.h writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "hf/hf_config.h"
#include "io/safetensors.h"
#include "model/model_config.h"
#include "nn/parameter_table.h"

namespace quern {

// Conv1D: the matrices of GPT-2's blocks lie in Hugging Face files as (in, out).
bool is_conv1d(const std::string& name, const Shape& shape);
Shape transposed(const Shape& shape);                       // of a matrix
std::vector<std::byte> transposed(const TensorView& view);  // the elements of a matrix

// The tensors of a model folder, found by name across shards; all matrices (out, in).
class TensorSource {
 public:
  // Opens every shard. Throws naming the file when one is missing or malformed, when the index and
  // the shards do not hold the same tensors, or one of them twice, and for weights of other forms
  // than safetensors.
  static TensorSource open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const { return shard_of_.contains(name); }
  // Throws naming the folder when the tensor is not there. Valid as long as this object.
  TensorView tensor(const std::string& name) const;
  // Also throws when its shape is not the one expected.
  TensorView tensor(const std::string& name, const Shape& expected) const;

 private:
  static TensorSource open_shards(const std::filesystem::path& folder);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> shards_;
  std::unordered_map<std::string, size_t> shard_of_;
  std::string prefix_;  // of names, that the files leave out
  mutable std::unordered_map<std::string, std::vector<std::byte>> transposed_;
};

// The tensors of the model's weights in forward order, as they lie in the folder. Throws naming
// folder and tensor when one is missing, has another shape, is not floating point, or is not the
// model's. A tied model's lm_head.weight may be there when it equals the embedding; rotary tables
// and causal masks of old files are passed over. Valid as long as the source.
std::vector<TensorView> model_weights(const TensorSource& source, const ModelConfig& config);

// Whether a tensor that is no weight of the model may lie among them: a table that is computed, or
// a weight under its second name, a tied head (`find` gives the tensors by name). Throws, beginning
// with `where`, when the tensors of the two names differ.
bool is_spare_tensor(const std::string& name, const ParameterTable& table, const std::string& where,
                     const std::function<TensorView(const std::string&)>& find);

}  // namespace quern
