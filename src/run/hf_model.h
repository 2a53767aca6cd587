// From a Hugging Face folder to a run folder without training in it, and from a run to a Hugging
// Face folder. Tensors go from file to file, so that neither needs much memory.
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

// Writes `out`: checkpoints/step_00000000 with the weights in the dtypes that they have, source/
// with config.json and generation_config.json as they are, tokenizer/ (`with_tokenizer`, and there
// is one) and config.toml. `out` is complete or not there. Throws naming file, key or tensor when
// the folder is not a model that Quern computes exactly, when its tokenizer is not one that Quern
// reads or does not fit, and when `out` exists.
ImportedModel import_model(const std::filesystem::path& folder, const std::filesystem::path& out,
                           bool with_tokenizer = true);

struct ExportOptions {
  bool latest = false;              // the newest checkpoint of a run, not the best
  bool source_dtype = false;        // the dtype that source/config.json names; goes before dtype
  std::optional<DType> dtype = {};  // empty: as in the checkpoint
  int64_t shard_bytes = 5'000'000'000;
};

// Writes the model of a checkpoint, or of a run's best one, with the run's tokenizer, as a new
// Hugging Face folder, complete or not there. Returns the checkpoint's path.
std::filesystem::path export_model(const std::filesystem::path& run,
                                   const std::filesystem::path& folder,
                                   const ExportOptions& options = {});

}  // namespace quern
