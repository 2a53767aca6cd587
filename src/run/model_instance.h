// A model in memory: its modules and the arena of its parameters.
#pragma once

#include <memory>
#include <utility>

#include "model/transformer_lm.h"
#include "nn/arena.h"

namespace quern {

// Needs a current Context. Members are destroyed in the right order. layout: this rank's part of
// the arena (train/training_step.h); none: everything. moved: ParameterArena::Options.
struct ModelInstance {
  ModelInstance(const ModelConfig& config, const ModelOptions& options, InitScheme init,
                bool training, uint64_t seed, ArenaLayoutOf layout = {},
                std::shared_ptr<MemoryPool> moved = nullptr)
      : model(config, options, init),
        arena(model, {.precision = options.precision,
                      .training = training,
                      .seed = seed,
                      .layout = std::move(layout),
                      .moved = std::move(moved),
                      .offload = training ? options.offload : Offload::none}) {
    if (training) model.start_dropout(seed);
  }

  TransformerLM model;
  ParameterArena arena;
};

}  // namespace quern
