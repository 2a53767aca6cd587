// A model in memory: its modules and the arena of its parameters.
#pragma once

#include "model/transformer_lm.h"
#include "nn/arena.h"

namespace quern {

// Needs a current Context. Members are destroyed in the right order.
struct ModelInstance {
  ModelInstance(const ModelConfig& config, const ModelOptions& options, InitScheme init,
                bool training, uint64_t seed)
      : model(config, options, init), arena(model, {options.precision, training, seed}) {
    if (training) model.start_dropout(seed);
  }

  TransformerLM model;
  ParameterArena arena;
};

}  // namespace quern
