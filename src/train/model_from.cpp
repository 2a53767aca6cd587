#include "train/model_from.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "io/huggingface.h"
#include "train/config_table.h"
#include "train/run_folder.h"
#include "train/train_state.h"
#include "train/weights.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kImportedContext = 2048;  // at most, where ctx is not given

bool is_hf_folder(const fs::path& path) {
  return fs::exists(path / "config.json") && !fs::exists(path / "config.toml");
}

// What model.from says, and whether it was trained here.
struct Origin {
  ModelConfig model;
  bool trained = false;
};

Origin origin_of(const fs::path& path) {
  QUERN_CHECK(fs::exists(path), "model.from: ", path.string(),
              ": there is no such folder, expected a Hugging Face folder, a run or a checkpoint");
  if (is_hf_folder(path)) return {read_hf_config(path), false};
  const TrainState state = peek_train_state(find_checkpoint(path, true));
  return {state.model, state.iteration > 0};
}

const std::set<std::string> kSized = {"d_model", "d_ff", "layers", "heads", "kv_heads"};
const std::vector<std::string> kDimensions = {"d_model",
                                              "d_ff",
                                              "layers",
                                              "heads",
                                              "kv_heads",
                                              "head_dim",
                                              "vocab",
                                              "tied",
                                              "qkv_bias",
                                              "qk_norm",
                                              "rope_theta",
                                              "rope_scaling",
                                              "rope_factor",
                                              "rope_low_freq_factor",
                                              "rope_high_freq_factor",
                                              "rope_original_ctx",
                                              "norm_eps"};

// 0 stands for other values.
ModelConfig spelled_out(ModelConfig model) {
  if (model.heads > 0 && model.head_dim == 0 && model.d_model % model.heads == 0) {
    model.head_dim = model.head_size();
  }
  model.kv_heads = model.kv_head_count();
  return model;
}

Config with_model(Config config, const ModelConfig& model) {
  static_cast<ModelConfig&>(config.model) = spelled_out(model);
  return config;
}

// `size` gives the keys that it sets.
void check_given(const Config& config, const ModelConfig& model,
                 const std::set<std::string>& given) {
  ModelConfig merged = config.model;  // the 0 of kv_heads and head_dim stands for what these say
  if (!given.contains("heads") && !given.contains("size")) merged.heads = model.heads;
  if (!given.contains("d_model") && !given.contains("size")) merged.d_model = model.d_model;
  const Config asked = with_model(config, merged), found = with_model(config, model);
  for (const std::string& name : kDimensions) {
    const bool sized = given.contains("size") && kSized.contains(name);
    if (!given.contains(name) && !sized) continue;
    if (name == "vocab" && config.model.vocab_size == 0) continue;  // as the data needs
    const std::string a = value_text(asked, name), b = value_text(found, name);
    if (a == b) continue;
    throw UsageError(cat(name, " is ", a, ", but the model of ", config.model.from,
                         " (model.from) has ", b, "; leave ", given.contains(name) ? name : "size",
                         " out"));
  }
}

}  // namespace

ModelConfig model_of(const fs::path& path) {
  return origin_of(path).model;
}

int64_t usual_context(const ModelConfig& model, bool trained) {
  return trained ? model.context : std::min(model.context, kImportedContext);
}

void apply_model_from(Config& config, const std::set<std::string>& given) {
  const Origin origin = origin_of(config.model.from);
  check_given(config, origin.model, given);
  const int64_t most = origin.model.context;
  int64_t context = usual_context(origin.model, origin.trained);
  if (given.contains("ctx")) {
    context = config.model.context;
    if (context > most) {
      throw UsageError(cat("ctx is ", context, ", but the model of ", config.model.from,
                           " (model.from) takes at most ", most, " tokens"));
    }
  }
  static_cast<ModelConfig&>(config.model) = origin.model;
  config.model.context = context;
}

void load_weights_from(ParameterArena& arena, const ModelSection& model) {
  const fs::path from = model.from;
  ModelConfig found = spelled_out(model_of(from)), asked = spelled_out(model);
  found.context = asked.context;
  QUERN_CHECK(found == asked, "model.from: ", from.string(),
              " is of another model than the configuration describes");
  if (is_hf_folder(from)) {
    load_weights(arena, TensorSource::open(from));
  } else {
    load_weights(arena, open_checkpoint(find_checkpoint(from, true)).weights);
  }
}

void copy_source(const fs::path& from, const fs::path& to) {
  fs::path source = from;
  if (!is_hf_folder(from)) source = RunFolder::open(from).source();
  if (!fs::exists(source / "config.json")) return;
  fs::create_directory(to);
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (fs::exists(source / name)) fs::copy_file(source / name, to / name);
  }
}

}  // namespace quern
