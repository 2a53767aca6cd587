// The differences of two models as configuration keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace quern {

// The keys of all dimensions (model_keys).
std::vector<std::string> model_key_names();

struct ModelDifference {
  std::string key, found, expected;  // a key and its two values, as a configuration has them
};

// The first of `keys` in which the models differ; empty: none. A 0 that stands for another value
// counts as that value.
std::optional<ModelDifference> model_difference(
    const ModelConfig& found, const ModelConfig& expected,
    const std::vector<std::string>& keys = model_key_names());

}  // namespace quern
