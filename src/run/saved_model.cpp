#include "run/saved_model.h"

#include "base/error.h"
#include "run/load_model.h"
#include "run/run_folder.h"
#include "run/run_tokenizer.h"
#include "run/weights.h"

namespace quern {

void SavedModel::check_kind(const std::string& name, bool is_text) const {
  QUERN_CHECK(is_text == state.is_text, name, " is ", is_text ? "text" : "a token file", ", but ",
              checkpoint.string(), " was trained on ",
              state.is_text ? "text" : "token files without a tokenizer");
}

void SavedModel::check_given(const Config& config, const std::set<std::string>& given) const {
  if (given.contains("from") && !config.model.from.empty()) {
    throw UsageError(cat("found --from ", config.model.from, ", but the model is that of ",
                         checkpoint.string(), "; leave --from out"));
  }
  check_given_model(config, given, state.model, "the model of " + checkpoint.string());
}

SavedModel load_saved_model(const std::filesystem::path& path, bool latest,
                            const ModelOptions& options) {
  SavedModel saved;
  saved.checkpoint = find_checkpoint(path, !latest);
  const Checkpoint checkpoint = open_checkpoint(saved.checkpoint);
  saved.state = state_of(checkpoint);
  saved.instance =
      std::make_unique<ModelInstance>(saved.state.model, options, InitScheme::normal, false, 0);
  load_weights(saved.instance->arena, checkpoint.weights);
  saved.tokenizer = saved_tokenizer(saved.checkpoint, saved.state);
  return saved;
}

}  // namespace quern
