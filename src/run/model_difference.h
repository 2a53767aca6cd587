// The differences of two models as configuration keys.
#pragma once

#include <optional>
#include <string>

#include "model/model_config.h"

namespace quern {

struct ModelDifference {
  std::string key, found, expected;  // a key and its two values, as a configuration has them
};

// The first of model_keys() in which the models differ; empty: none. A 0 that stands for another
// value counts as that value.
std::optional<ModelDifference> model_difference(const ModelConfig& found,
                                                const ModelConfig& expected);

}  // namespace quern
