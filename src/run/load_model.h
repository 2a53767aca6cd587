// What model.from names: a model to start training from, instead of random weights.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "config/config.h"
#include "model/model_config.h"
#include "nn/arena.h"

namespace quern {

// The model of a Hugging Face folder, of a run (its best checkpoint) or of a checkpoint. Reads no
// weights. Throws when the path is none of them.
ModelConfig model_of(const std::filesystem::path& path);

// The context to use a model with when none is asked for: its own; of a model that was not trained
// here, which may take a hundred thousand tokens, at most 2048.
int64_t usual_context(const ModelConfig& model, bool trained);

// For parse_args: takes the dimensions of config.model.from over. The context is what ctx gives, if
// it is among `given` (the keys that a person set), else the usual one. Throws UsageError naming
// key and both values when a given one is another than the model's.
void apply_model_from(Config& config, const std::set<std::string>& given);

// What a person gave about a model that is decided already: throws UsageError naming key and both
// values when one of the dimensions among `given` is another than the model's. `whose` names it:
// "the model of runs/mine".
void check_given_model(const Config& config, const std::set<std::string>& given,
                       const ModelConfig& model, const std::string& whose);

// Fills the arena of a model that has config.model's dimensions. Throws when the weights are of
// another model.
void load_weights_from(ParameterArena& arena, const ModelSection& model);

// Copies what the run needs beside its weights to be exported as what it came from:
// config.json and generation_config.json into the new folder `to`. Nothing when a run that `from`
// names has none.
void copy_source(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace quern
