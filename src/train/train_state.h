// All that a run needs to continue as if it had never stopped, to and from a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>

#include "data/sampler.h"
#include "nn/arena.h"
#include "nn/model_config.h"
#include "optim/adamw.h"

namespace quern {

struct TrainState {
  int64_t iteration = 0;  // steps tried, the skipped ones included
  int64_t step = 0;       // updates made: AdamW's t
  int64_t skipped = 0;
  SamplerState sampler;
  double best_loss = std::numeric_limits<double>::infinity();  // validation
  int64_t best_iteration = 0;
  ModelConfig model;
  bool is_text = false;         // tokens are bytes: prompts and samples are text
  std::string gemm_algorithms;  // the table in use (tensor/gemm_table.h); empty on the CPU
};

// Writes checkpoints/step_<iteration>: weights and moments of the arena, under their Hugging Face
// names, and the state.
std::filesystem::path save_train_state(const std::filesystem::path& checkpoints,
                                       const ParameterArena& arena, const TrainState& state);

// Replaces the state of checkpoints/step_<iteration>, which was saved with the same weights: its
// validation came later.
void update_train_state(const std::filesystem::path& checkpoints, const TrainState& state);

// The state of a checkpoint, which is read and verified whole.
TrainState read_train_state(const std::filesystem::path& checkpoint);

// Fills the arena from a checkpoint of `model`: the weights, and the moments when the arena has
// them. Throws when a tensor is missing or has another shape.
TrainState load_train_state(const std::filesystem::path& checkpoint, ParameterArena& arena,
                            const ModelConfig& model);

}  // namespace quern
