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
  // Of the text that it was trained on; null: it was trained on token files of an unknown one.
  std::shared_ptr<const Tokenizer> tokenizer;

  // What the data of `name` is must be what the model was trained on: text, or tokens. Throws.
  void check_kind(const std::string& name, bool is_text) const;
  // What a person gave about the model, the keys among `given`, must be what it is. UsageError.
  void check_given(const Config& config, const std::set<std::string>& given) const;
};

// `path`: a checkpoint, or a run folder, of which the best checkpoint is taken (`latest`: the
// newest). Throws when there is none, or when it is damaged.
SavedModel load_saved_model(const std::filesystem::path& path, bool latest,
                            const ModelOptions& options);

}  // namespace quern
