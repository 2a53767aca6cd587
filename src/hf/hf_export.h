// Models as Hugging Face folders, written tensor by tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "hf/hf_config.h"
#include "io/safetensors.h"

namespace quern {

struct HfExportOptions {
  std::optional<DType> dtype = {};      // f32, bf16 or f16 for all weights; empty: as they are
  int64_t shard_bytes = 5'000'000'000;  // a file holds no more, but one tensor at least
  HfConfigOptions config = {};
};

// Writes config.json, generation_config.json and model.safetensors, or several shards and their
// index as transformers names them, making the folder if needed. Values are rounded to nearest
// even. A tied head (lm_head.weight) is left out, as transformers does. Throws when a weight of the
// model is missing or has another shape, when a name is not the model's, and when a finite value is
// beyond the range of the dtype.
void export_hf(const std::filesystem::path& folder, const ModelConfig& config,
               std::span<const TensorView> weights, const HfExportOptions& options = {});

}  // namespace quern
