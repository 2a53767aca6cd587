// config.json and generation_config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/dtype.h"
#include "model/model_config.h"

namespace quern {

// Reads model_type llama, mistral, qwen2, qwen3 and gpt2, in the old spelling (rope_theta,
// rope_scaling, torch_dtype) and the new one (rope_parameters, dtype). Both must agree in a file.
// Absent keys have transformers' defaults. kv_heads and head_dim become 0 if they equal heads and
// d_model / heads. Throws naming the file and a key that is missing, of the wrong type, or needs an
// unsupported feature: another model_type, activation or RoPE scaling, experts, sliding windows,
// other biases, quantised weights.
ModelConfig read_hf_config(const std::filesystem::path& folder);

// The dtype that config.json names (dtype or torch_dtype); empty when it names none. Throws on a
// name that is not a floating-point type.
std::optional<DType> read_hf_dtype(const std::filesystem::path& folder);

struct HfConfigOptions {
  // The tokenizer's; ignored if there is a source.
  std::optional<int64_t> begin_token = {}, end_token = {};
  // The model's source: a folder with its config.json and optionally generation_config.json, whose
  // keys are kept. Empty: none.
  std::filesystem::path source = {};
};

// Writes config.json in both spellings, so that any version of transformers reads it, and
// generation_config.json. `dtype`: of the weights. A source's config.json with this dtype and these
// learned positions is copied byte for byte. Throws when no family of transformers has the model
// (biases and norms of q and k together), and when the source describes another model.
void write_hf_config(const std::filesystem::path& folder, const ModelConfig& config, DType dtype,
                     const HfConfigOptions& options = {});

}  // namespace quern
