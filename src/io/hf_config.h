// config.json of a Hugging Face Llama folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "base/dtype.h"
#include "nn/model_config.h"

namespace quern {

// Reads the old spelling (rope_theta, rope_scaling, torch_dtype) and the new one (rope_parameters,
// dtype). kv_heads and head_dim come out 0 where they are what 0 means. Throws naming the file and
// the key that is missing, of the wrong type, or asks for what Quern has not: another model_type or
// activation, biases, scaled or partial rope, sliding windows, quantised weights.
ModelConfig read_hf_config(const std::filesystem::path& folder);

// config.json in both spellings, so that any version of transformers reads it, and
// generation_config.json. dtype: of the weights. end_token: at which generation stops.
void write_hf_config(const std::filesystem::path& folder, const ModelConfig& config, DType dtype,
                     std::optional<int64_t> end_token = {});

}  // namespace quern
