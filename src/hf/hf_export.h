// Writes models as Hugging Face folders, tensor by tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "hf/hf_config.h"
#include "io/safetensors.h"

namespace quern {

struct HfExportOptions {
  std::optional<DType> dtype = {};      // f32, bf16 or f16 for all weights; empty: unchanged
  int64_t shard_bytes = 5'000'000'000;  // limit for a file, which has at least one tensor
  HfConfigOptions config = {};
};

// Creates the folder if needed. Writes config.json, generation_config.json and model.safetensors,
// or several shards and their index with transformers' names. Values are rounded to nearest even.
// A tied head (lm_head.weight) is omitted, as in transformers. Throws when a weight of the model is
// missing or has another shape, when a name is not the model's, and when a finite value exceeds the
// range of the dtype.
void export_hf(const std::filesystem::path& folder, const ModelConfig& config,
               std::span<const TensorView> weights, const HfExportOptions& options = {});

}  // namespace quern
