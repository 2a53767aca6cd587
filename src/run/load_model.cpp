#include "run/load_model.h"

#include <algorithm>

#include "base/error.h"
#include "config/config_table.h"
#include "hf/huggingface.h"
#include "io/atomic_file.h"
#include "io/folder.h"
#include "io/python_line.h"
#include "io/small_file.h"
#include "model/architecture.h"
#include "run/model_difference.h"
#include "run/run_folder.h"
#include "run/train_state.h"
#include "run/weights.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kImportedContext = 2048;  // upper limit if ctx is not given

bool is_hf_folder(const fs::path& path) {
  return fs::exists(path / "config.json") && !fs::exists(path / "config.toml");
}

// The model of model.from, which is a Hugging Face folder, a run (its best checkpoint) or a
// checkpoint, and whether it was trained here.
struct Origin {
  ModelConfig model;
  bool trained = false;
};

Origin origin_of(const fs::path& path) {
  QUERN_CHECK(fs::exists(path), "model.from: ", path.string(),
              ": there is no such folder, expected a Hugging Face folder, a run or a checkpoint",
              hub_hint(path.string(), HubKind::model));
  if (is_hf_folder(path)) {
    const ModelConfig model = read_hf_config(path);
    model_weights(TensorSource::open(path), model);  // throws when they belong to another model
    return {model, false};
  }
  const TrainState state = peek_train_state(find_checkpoint(path, true));
  return {state.model, state.iteration > 0};
}

}  // namespace

int64_t usual_context(const ModelConfig& model, bool trained) {
  if (trained || model.positions == PositionKind::learned) return model.context;
  return std::min(model.context, kImportedContext);
}

void check_given_model(const Config& config, const std::set<std::string>& given,
                       const ModelConfig& model, const std::string& whose) {
  Config asked = config_of(model);
  if (given.contains("size")) {
    apply_size(asked.model, config.model.size);
    asked.model.context = model.context;  // a size's is only the largest
  }
  for (const ConfigKey* key : model_keys()) {
    if (given.contains(key->name)) key->set(asked, key->get(config));
  }
  if (config.model.vocab_size == 0) asked.model.vocab_size = model.vocab_size;  // as the data needs
  const auto difference = model_difference(asked.model, model);
  if (!difference) return;
  const auto& [key, found, expected] = *difference;
  throw UsageError(cat(key, " is ", found, ", but ", whose, " has ", expected, "; leave ",
                       given.contains(key) ? key : "size", " out"));
}

void apply_model_from(Config& config, const std::set<std::string>& given) {
  const Origin origin = origin_of(config.model.from);
  const std::string whose = cat("the model of ", config.model.from, " (model.from)");
  std::set<std::string> dimensions = given;
  dimensions.erase("ctx");  // may be smaller
  check_given_model(config, dimensions, origin.model, whose);
  const int64_t most = origin.model.context;
  int64_t context = usual_context(origin.model, origin.trained);
  if (given.contains("ctx")) {
    context = config.model.context;
    if (context > most) {
      throw UsageError(
          cat("ctx is ", context, ", but ", whose, " takes at most ", most, " tokens"));
    }
  }
  static_cast<ModelConfig&>(config.model) = origin.model;
  config.model.context = context;
}

void load_weights_from(ParameterArena& arena, const ModelSection& model) {
  const fs::path from = model.from;
  ModelConfig found = origin_of(from).model;
  found.context = model.context;
  const auto difference = model_difference(found, model);
  QUERN_CHECK(!difference, "model.from: ", from.string(), ": its model has ", difference->key,
              " = ", difference->found, ", found ", difference->key, " = ", difference->expected,
              " in the configuration");
  const std::string positions = cat(architecture_of(found).positions, ".weight");
  if (is_hf_folder(from)) {
    load_weights(arena, TensorSource::open(from), positions);
  } else {
    load_weights(arena, open_checkpoint(find_checkpoint(from, true)).weights, positions);
  }
}

void copy_source(const fs::path& from, const fs::path& to) {
  fs::path source = from;
  if (!is_hf_folder(from)) source = RunFolder::open(from).source();
  if (!is_there(source / "config.json")) return;
  create_folder(to);
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (is_there(source / name)) copy_file_atomically(source / name, to / name);
  }
  sync_directory(to.parent_path());
}

}  // namespace quern
