// The complete state of a run, to and from a checkpoint: a resumed run equals an uninterrupted one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "data/sampler.h"
#include "dist/rank_team.h"
#include "dist/sharded_weights.h"
#include "model/model_config.h"
#include "nn/arena.h"
#include "optim/optimizer.h"
#include "run/checkpoint.h"

namespace quern {

struct TrainState {
  int64_t iteration = 0;  // steps tried, including the skipped ones
  int64_t step = 0;       // updates made: the optimizer's t
  int64_t skipped = 0;
  SamplerState sampler;
  int64_t batches = 0;  // drawn, in older states, instead of the sampler's windows
  double best_loss = std::numeric_limits<double>::infinity();  // validation
  int64_t best_iteration = 0;
  ModelConfig model;
  std::string optimizer = "adamw";  // Optimizer::name(); older checkpoints have AdamW's state
  bool is_text = false;             // tokens are bytes (byte_tokenizer.h)
  std::string tokenizer;            // Tokenizer::hash(); empty: unknown, the data were bare tokens
  std::string train_data, validation_data;  // TokenSource::fingerprint(); older states have none
  std::string gemm_algorithms;  // the table in use (tensor/gemm_table.h); empty on the CPU
};

// Writes checkpoints/step_<iteration>: the weights under their Hugging Face names, the optimizer's
// buffers and the state, of which the leading rank's counts. Every rank of `team` calls this, and
// writes a file of each kind. shards: where the ranks share out weights and buffers.
std::filesystem::path save_train_state(const std::filesystem::path& checkpoints,
                                       const ParameterArena& arena, const Optimizer& optimizer,
                                       TrainState state, const RankTeam& team = RankTeam(nullptr),
                                       const ShardedWeights* shards = nullptr);

// The same for an imported model: its weights in any floating dtypes and no optimizer state, so a
// run cannot be resumed from it.
std::filesystem::path save_weights(const std::filesystem::path& checkpoints,
                                   std::vector<TensorView> weights, const TrainState& state);

// Replaces the state of checkpoints/step_<iteration>, which has the same weights, after a
// validation.
void update_train_state(const std::filesystem::path& checkpoints, const TrainState& state);

// The state of a checkpoint, which open_checkpoint has verified.
TrainState state_of(const Checkpoint& checkpoint);
// The same from the manifest alone, without the GEMM table.
TrainState peek_train_state(const std::filesystem::path& checkpoint);

// Fills the arena and the optimizer from a checkpoint of `model`. Throws with the key when the
// checkpoint holds another model, with the tensor when one is missing, has another shape or is not
// finite, and with both names when another optimizer wrote the checkpoint.
TrainState load_train_state(const std::filesystem::path& checkpoint, ParameterArena& arena,
                            const ModelConfig& model, Optimizer& optimizer);

}  // namespace quern
