// All that a run needs to continue as if it had never stopped, to and from a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "io/checkpoint.h"
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
  bool is_text = false;         // tokens are bytes (byte_tokenizer.h)
  std::string tokenizer;        // Tokenizer::hash(); empty: not known, the data were bare tokens
  std::string gemm_algorithms;  // the table in use (tensor/gemm_table.h); empty on the CPU
};

// Writes checkpoints/step_<iteration>: weights and moments of the arena, under their Hugging Face
// names, and the state.
std::filesystem::path save_train_state(const std::filesystem::path& checkpoints,
                                       const ParameterArena& arena, const TrainState& state);

// The same of a model that was not trained here: the weights as they lie elsewhere, of any floating
// dtypes, and no moments, so that a run cannot be resumed from it.
std::filesystem::path save_weights(const std::filesystem::path& checkpoints,
                                   std::vector<TensorView> weights, const TrainState& state);

// Replaces the state of checkpoints/step_<iteration>, which was saved with the same weights: its
// validation came later.
void update_train_state(const std::filesystem::path& checkpoints, const TrainState& state);

// The state of a checkpoint, which is read and verified whole.
TrainState read_train_state(const std::filesystem::path& checkpoint);
TrainState state_of(const Checkpoint& checkpoint);
// The same from the manifest alone, without the GEMM table.
TrainState peek_train_state(const std::filesystem::path& checkpoint);

// Fills the arena from a checkpoint of `model`: the weights, and the moments when the arena has
// them. Throws naming the key when the checkpoint is of another model, and naming the tensor when
// one is missing, has another shape or, of the weights, is not finite.
TrainState load_train_state(const std::filesystem::path& checkpoint, ParameterArena& arena,
                            const ModelConfig& model);

}  // namespace quern
