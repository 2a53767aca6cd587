#include "run/model_difference.h"

#include "config/config_table.h"

namespace quern {

namespace {

// Replaces a 0 by the value that it stands for.
Config config_of(ModelConfig model) {
  if (model.heads > 0 && model.head_dim == 0 && model.d_model % model.heads == 0) {
    model.head_dim = model.head_size();
  }
  model.kv_heads = model.kv_head_count();
  Config config;
  static_cast<ModelConfig&>(config.model) = model;
  return config;
}

}  // namespace

std::vector<std::string> model_key_names() {
  std::vector<std::string> names;
  for (const ConfigKey* key : model_keys()) names.push_back(key->name);
  return names;
}

std::optional<ModelDifference> model_difference(const ModelConfig& found,
                                                const ModelConfig& expected,
                                                const std::vector<std::string>& keys) {
  const Config a = config_of(found), b = config_of(expected);
  for (const std::string& key : keys) {
    const std::string x = value_text(a, key), y = value_text(b, key);
    if (x != y) return ModelDifference{key, x, y};
  }
  return {};
}

}  // namespace quern
