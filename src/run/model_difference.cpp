#include "run/model_difference.h"

#include "config/config_table.h"

namespace quern {

namespace {

// Replaces a 0 by the value that it stands for.
Config explicit_config(ModelConfig model) {
  if (model.heads > 0 && model.head_dim == 0 && model.d_model % model.heads == 0) {
    model.head_dim = model.head_size();
  }
  model.kv_heads = model.kv_head_count();
  return config_of(model);
}

}  // namespace

std::optional<ModelDifference> model_difference(const ModelConfig& found,
                                                const ModelConfig& expected) {
  const Config a = explicit_config(found), b = explicit_config(expected);
  for (const ConfigKey* key : model_keys()) {
    const std::string x = value_text(a, key->name), y = value_text(b, key->name);
    if (x != y) return ModelDifference{key->name, x, y};
  }
  return {};
}

}  // namespace quern
