// Hugging Face model folders: config.json (hf_config.h), and model.safetensors or several shards
// with model.safetensors.index.json. hf_export.h writes them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "hf/hf_config.h"
#include "io/safetensors_shards.h"
#include "model/model_config.h"
#include "nn/parameter_table.h"

namespace quern {

inline constexpr const char* kHfStem = "model";  // of the weights' files

// True for Conv1D: Hugging Face files store the matrices of GPT-2's blocks as (in, out).
bool is_conv1d(const std::string& name, const Shape& shape);
Shape transposed(const Shape& shape);                       // of a matrix
std::vector<std::byte> transposed(const TensorView& view);  // the elements of a matrix

// The tensors of a model folder, by name across shards; all matrices are (out, in).
class TensorSource {
 public:
  // Opens every shard. Throws naming the file when one is missing or malformed, when the index and
  // the shards do not list the same tensors, when a tensor occurs twice, and for weights in formats
  // other than safetensors.
  static TensorSource open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const;
  // Throws naming the folder when the tensor is missing. Valid as long as this object.
  TensorView tensor(const std::string& name) const;
  // Also throws when its shape is not `expected`.
  TensorView tensor(const std::string& name, const Shape& expected) const;

 private:
  TensorSource(std::filesystem::path folder, SafetensorsShards shards)
      : folder_(std::move(folder)), shards_(std::move(shards)) {}

  std::filesystem::path folder_;
  SafetensorsShards shards_;
  std::string prefix_;  // of all names; the files omit it
  mutable std::unordered_map<std::string, std::vector<std::byte>> transposed_;
};

// The model's weights in forward order, in the folder's dtypes. Throws naming folder and tensor
// when one is missing, has another shape, is not floating point, or is not the model's. A tied
// model may have an lm_head.weight equal to the embedding. Rotary tables and causal masks of old
// files are ignored. Valid as long as the source.
std::vector<TensorView> model_weights(const TensorSource& source, const ModelConfig& config);

// True when a tensor outside the model's weights may be ignored: a computed table, or a weight
// under its second name, a tied head (`find` returns tensors by name). Throws when the tensors of
// the two names differ; the message begins with `where`.
bool is_spare_tensor(const std::string& name, const ParameterTable& table, const std::string& where,
                     const std::function<TensorView(const std::string&)>& find);

}  // namespace quern
