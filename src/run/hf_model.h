// Import of a Hugging Face folder as an untrained run folder, and export of a run as a Hugging Face
// folder. Tensors go from file to file, so neither needs much memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "model/model_config.h"

namespace quern {

struct ImportedModel {
  ModelConfig model;
  int64_t bytes = 0;      // of the weights
  std::string tokenizer;  // its kind; empty: none
};

// Writes `out`: checkpoints/step_00000000 with the weights in their own dtypes, source/ with
// unchanged config.json and generation_config.json, tokenizer/ (under `with_tokenizer`, if there is
// one) and config.toml. `out` is complete or absent. Throws with file, key or tensor when Quern
// cannot compute the model exactly, cannot read its tokenizer, the tokenizer does not fit, or `out`
// exists.
ImportedModel import_model(const std::filesystem::path& folder, const std::filesystem::path& out,
                           bool with_tokenizer = true);

struct ExportOptions {
  bool latest = false;              // the newest checkpoint of a run, not the best
  bool source_dtype = false;        // the dtype in source/config.json; overrides dtype
  std::optional<DType> dtype = {};  // empty: as in the checkpoint
  int64_t shard_bytes = 5'000'000'000;
};

// Writes the model of a checkpoint, or of a run's best one, with the run's tokenizer, as a new
// Hugging Face folder, complete or absent. Returns the checkpoint's path.
std::filesystem::path export_model(const std::filesystem::path& run,
                                   const std::filesystem::path& folder,
                                   const ExportOptions& options = {});

}  // namespace quern
