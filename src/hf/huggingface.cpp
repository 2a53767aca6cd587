#include "hf/huggingface.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "base/error.h"
#include "model/model_cost.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr const char* kHead = "lm_head.weight";

// OpenAI's GPT-2 files hold the model without its head, and their names lack this prefix.
constexpr const char* kGpt2Prefix = "transformer.";

// Reports a folder without weights that Quern can read.
[[noreturn]] void refuse_weights(const fs::path& folder) {
  std::error_code ignored;  // an inaccessible file counts as missing
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5",
                           "flax_model.msgpack", "consolidated.00.pth"}) {
    QUERN_CHECK(!fs::exists(folder / name, ignored), folder.string(), ": has its weights in ", name,
                ", expected safetensors; transformers' save_pretrained writes them");
  }
  fail(cat(folder.string(), ": has neither ", safetensors_name(kHfStem), " nor ",
           safetensors_index_name(kHfStem)));
}

}  // namespace

bool is_conv1d(const std::string& name, const Shape& shape) {
  return shape.ndim() == 2 && name.find(cat(kGpt2Prefix, "h.")) != std::string::npos;
}

Shape transposed(const Shape& shape) {
  return {shape[1], shape[0]};
}

std::vector<std::byte> transposed(const TensorView& view) {
  const size_t size = static_cast<size_t>(size_of(view.dtype));
  const auto rows = static_cast<size_t>(view.shape[0]), cols = static_cast<size_t>(view.shape[1]);
  std::vector<std::byte> out(view.data.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      std::memcpy(&out[(c * rows + r) * size], &view.data[(r * cols + c) * size], size);
    }
  }
  return out;
}

TensorSource TensorSource::open(const fs::path& folder) {
  if (!SafetensorsShards::are_in(folder, kHfStem)) refuse_weights(folder);
  TensorSource source(folder, SafetensorsShards::open(folder, kHfStem));
  if (source.shards_.contains("wte.weight")) source.prefix_ = kGpt2Prefix;
  return source;
}

std::vector<std::string> TensorSource::names() const {
  std::vector<std::string> names;
  for (const std::string& name : shards_.names()) names.push_back(prefix_ + name);
  std::sort(names.begin(), names.end());
  return names;
}

bool TensorSource::contains(const std::string& name) const {
  return name.starts_with(prefix_) && shards_.contains(name.substr(prefix_.size()));
}

TensorView TensorSource::tensor(const std::string& name) const {
  QUERN_CHECK(contains(name), folder_.string(), ": has no tensor '", name, "'");
  TensorView view = shards_.tensor(name.substr(prefix_.size()));
  view.name = name;
  if (!is_conv1d(name, view.shape)) return view;
  const auto [matrix, first] = transposed_.try_emplace(name);
  if (first) matrix->second = transposed(view);
  return {name, view.dtype, transposed(view.shape), matrix->second};
}

TensorView TensorSource::tensor(const std::string& name, const Shape& expected) const {
  TensorView view = tensor(name);
  QUERN_CHECK(view.shape == expected, shards_.file_of(name.substr(prefix_.size())).path().string(),
              ": tensor '", name, "' has shape ", view.shape, ", expected ", expected);
  return view;
}

bool is_spare_tensor(const std::string& name, const ParameterTable& table, const std::string& where,
                     const std::function<TensorView(const std::string&)>& find) {
  const bool mask = name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  if (name.ends_with(".rotary_emb.inv_freq") || (mask && name.starts_with(kGpt2Prefix)))
    return true;
  const auto alias = std::ranges::find(table.aliases(), name, &ParameterList::Alias::name);
  if (alias == table.aliases().end()) return false;
  const TensorView tensor = find(name), first = find(alias->of);
  QUERN_CHECK(tensor.dtype == first.dtype && tensor.shape == first.shape &&
                  std::ranges::equal(tensor.data, first.data),
              where, ": tensor '", name, "' differs from '", alias->of,
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
  const ParameterTable table = parameter_table(config);
  for (const auto& [name, shape, begin] : table.slices()) {
    QUERN_CHECK(source.contains(name) || name != kHead, where, ": has no tensor '", kHead,
                "', expected one: config.json does not say tie_word_embeddings");
    const TensorView& view = weights.emplace_back(source.tensor(name, shape));
    QUERN_CHECK(is_floating(view.dtype), where, ": tensor '", name, "' is ", view.dtype,
                ", expected f32, bf16, f16 or f64");
    expected.insert(name);
  }
  const auto find = [&](const std::string& name) { return source.tensor(name); };
  for (const std::string& name : source.names()) {
    QUERN_CHECK(expected.contains(name) || is_spare_tensor(name, table, where, find), where,
                ": tensor '", name, "' is not one of the model's");
  }
  return weights;
}

}  // namespace quern
