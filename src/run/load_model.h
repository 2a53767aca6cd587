// The model named by model.from: it starts training in place of random weights.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "config/config.h"
#include "model/model_config.h"
#include "nn/arena.h"

namespace quern {

// The default context for a model: its own, but at most 2048 for a model that was not trained here,
// which may support a hundred thousand tokens.
int64_t usual_context(const ModelConfig& model, bool trained);

// For parse_args: copies the dimensions of config.model.from. The context is ctx if it is among
// `given` (the keys that the user set), else usual_context(). Throws UsageError with key and both
// values when a given value differs from the model's.
void apply_model_from(Config& config, const std::set<std::string>& given);

// Checks given dimensions against an existing model: throws UsageError with key and both values
// when one of the dimensions among `given` differs from the model's. `whose` names the model: "the
// model of runs/mine".
void check_given_model(const Config& config, const std::set<std::string>& given,
                       const ModelConfig& model, const std::string& whose);

// Fills the arena of a model with config.model's dimensions. With a shorter context than the
// source's, learned positions are the first ones. Throws when the weights belong to another model.
void load_weights_from(ParameterArena& arena, const ModelSection& model);

// Copies config.json and generation_config.json, which an export in the original format needs, into
// the new folder `to`. Does nothing when `from` is a run without them.
void copy_source(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace quern
