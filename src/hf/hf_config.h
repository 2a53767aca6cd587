// config.json and generation_config.json of a Hugging Face model folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/dtype.h"
#include "model/model_config.h"

namespace quern {

// Reads model_type llama, mistral, qwen2, qwen3 and gpt2, in the old spelling (rope_theta,
// rope_scaling, torch_dtype) and the new one (rope_parameters, dtype); where a file has both they
// must agree. Absent keys are what transformers takes them for. kv_heads and head_dim come out 0
// where they are what 0 means. Throws naming the file and the key that is missing, of the wrong
// type, or asks for what Quern has not: another model_type, activation or RoPE scaling, experts,
// sliding windows, other biases, quantised weights.
ModelConfig read_hf_config(const std::filesystem::path& folder);

// The dtype that config.json names (dtype or torch_dtype); empty when it names none. Throws on a
// name that is not a floating-point type.
std::optional<DType> read_hf_dtype(const std::filesystem::path& folder);

struct HfConfigOptions {
  // Of the tokenizer; not used when there is a source.
  std::optional<int64_t> begin_token = {}, end_token = {};
  // A folder with the config.json that the model came from, and perhaps generation_config.json:
  // their keys are kept. Empty: none.
  std::filesystem::path source = {};
};

// Writes config.json in both spellings, so that any version of transformers reads it, and
// generation_config.json. `dtype`: of the weights. A source that says all this already stays as it
// is, byte for byte. Throws when no family of transformers has the model (biases and norms of q and
// k together), and when the source is of another model.
void write_hf_config(const std::filesystem::path& folder, const ModelConfig& config, DType dtype,
                     const HfConfigOptions& options = {});

}  // namespace quern
