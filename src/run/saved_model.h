// The model of a run, as generate, eval and export use it.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "config/config.h"
#include "run/model_instance.h"
#include "run/train_state.h"
#include "text/tokenizer.h"

namespace quern {

// A checkpoint's model, without gradients or moments. Needs a current Context.
struct SavedModel {
  std::filesystem::path checkpoint;
  TrainState state;
  std::unique_ptr<ModelInstance> instance;
  // The tokenizer of the training text; null: token files of an unknown tokenizer.
  std::shared_ptr<const Tokenizer> tokenizer;

  // Throws unless the data `name` is of the kind that the model was trained on: text, or tokens.
  void check_kind(const std::string& name, bool is_text) const;
  // Throws UsageError when a dimension among the keys `given` differs from the model's.
  void check_given(const Config& config, const std::set<std::string>& given) const;
};

// `path`: a checkpoint, or a run folder, whose best checkpoint is loaded (`latest`: the newest).
// Throws when there is none, or when it is damaged.
SavedModel load_saved_model(const std::filesystem::path& path, bool latest,
                            const ModelOptions& options);

}  // namespace quern
