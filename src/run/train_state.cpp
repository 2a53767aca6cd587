#include "run/train_state.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/round_up.h"
#include "base/shell_word.h"
#include "config/config_table.h"
#include "io/json_file.h"
#include "run/model_difference.h"
#include "run/weights.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

using Pointer = Json::json_pointer;

Json model_json(const ModelConfig& model) {
  const Config config = config_of(model);
  Json json;
  for (const ConfigKey* key : model_keys()) {
    json[Pointer(key->manifest)] =
        std::visit([](const auto& x) -> Json { return x; }, key->get(config));
  }
  return json;
}

// The value of a place that holds a number, a text, true or false; otherwise empty.
std::optional<ConfigValue> value_of(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  return {};
}

ModelConfig parse_model(const JsonPlace& model) {
  if (!model.json.is_object()) model.refuse("an object");
  Config config;
  for (const ConfigKey* key : model_keys()) {
    const nlohmann::json::json_pointer pointer(key->manifest);
    if (!model.json.contains(pointer)) continue;
    std::string path = model.path + key->manifest;
    std::replace(path.begin() + std::ssize(model.path), path.end(), '/', '.');
    const JsonPlace place{model.json.at(pointer), path};
    const std::optional<ConfigValue> value = value_of(place.json);
    if (!value || !key->set(config, *value)) place.refuse(key->expected);
  }
  return config.model;
}

std::string to_json(const TrainState& s) {
  Json j = {{"iteration", s.iteration},
            {"step", s.step},
            {"skipped", s.skipped},
            {"sampler", {{"seed", s.sampler.seed}, {"draw", s.sampler.draw}}},
            {"model", model_json(s.model)},
            {"optimizer", s.optimizer},
            {"is_text", s.is_text},
            {"tokenizer", s.tokenizer},
            {"data", {{"train", s.train_data}, {"validation", s.validation_data}}}};
  if (s.best_iteration > 0) j["best"] = {{"loss", s.best_loss}, {"iteration", s.best_iteration}};
  return j.dump(2);
}

TrainState from_json(const std::string& text, const std::filesystem::path& path) {
  const std::string place = cat((path / "manifest.json").string(), ": state");
  const nlohmann::json json = parse_distinct_json(text, place);
  const JsonPlace state{json, place};
  TrainState s;
  s.iteration = state.at("iteration").count();
  s.step = state.at("step").count();
  s.skipped = state.at("skipped").count();
  const JsonPlace sampler = state.at("sampler");
  s.sampler.seed = sampler.at("seed").unsigned_number();
  if (sampler.has("batch")) {
    s.batches = sampler.at("batch").count();
  } else {
    s.sampler.draw = static_cast<uint64_t>(sampler.at("draw").count());
  }
  s.model = parse_model(state.at("model"));
  if (state.has("optimizer")) s.optimizer = state.at("optimizer").text();
  s.is_text = state.at("is_text").boolean();
  s.tokenizer = s.is_text ? "bytes" : "";  // absent in older states
  if (state.has("tokenizer")) s.tokenizer = state.at("tokenizer").text();
  if (state.has("data")) {
    s.train_data = state.at("data").at("train").text();
    s.validation_data = state.at("data").at("validation").text();
  }
  if (state.has("best")) {
    s.best_loss = state.at("best").at("loss").number();
    s.best_iteration = state.at("best").at("iteration").count();
  }
  return s;
}

// Cuts the slices of all buffers, one behind the other, into a file a rank of about as many
// elements each, and keeps those of this rank's. Where tensors are few or large, there are fewer
// files than ranks.
FileNumber keep_one_file(std::vector<OptimizerBuffer>& buffers, const RankTeam& team) {
  int64_t total = 0, before = 0;
  for (const OptimizerBuffer& buffer : buffers) {
    for (const NamedSlice& slice : buffer.slices) total += slice.shape.numel();
  }
  const int64_t each = std::max<int64_t>(1, ceil_div(total, team.count()));
  std::set<int64_t> ranks;  // that write a file
  for (OptimizerBuffer& buffer : buffers) {
    std::vector<NamedSlice> own;
    for (const NamedSlice& slice : buffer.slices) {
      const int64_t middle = before + slice.shape.numel() / 2;
      const int64_t rank = std::min(middle / each, team.count() - 1);
      before += slice.shape.numel();
      ranks.insert(rank);
      if (rank == team.rank()) own.push_back(slice);
    }
    buffer.slices = std::move(own);
  }
  if (ranks.empty()) ranks.insert(0);  // an optimizer without state
  FileNumber file{{}, ranks.size()};
  const auto found = ranks.find(team.rank());
  if (found != ranks.end()) file.number = std::distance(ranks.begin(), found);
  return file;
}

}  // namespace

std::filesystem::path save_train_state(const std::filesystem::path& checkpoints,
                                       const ParameterArena& arena, const Optimizer& optimizer,
                                       TrainState state, const RankTeam& team,
                                       const ShardedWeights* shards) {
  state.optimizer = optimizer.name();
  CheckpointContents contents{state.iteration, {}, {}, to_json(state), state.gemm_algorithms};
  std::vector<Tensor> memory;  // of the views
  const auto take = [&](std::vector<OptimizerBuffer> buffers, std::vector<TensorView>& views,
                        FileNumber& file) {
    file = keep_one_file(buffers, team);
    for (const OptimizerBuffer& buffer : buffers) {
      const HostTensors host = host_tensors(buffer, shards);
      memory.push_back(host.memory);
      views.insert(views.end(), host.views.begin(), host.views.end());
    }
  };
  take({values_of(arena)}, contents.weights, contents.weights_file);
  take(optimizer.buffers(), contents.moments, contents.moments_file);
  return write_checkpoint(checkpoints, contents, team);
}

void update_train_state(const std::filesystem::path& checkpoints, const TrainState& state) {
  rewrite_checkpoint_state(checkpoint_path(checkpoints, state.iteration), to_json(state));
}

std::filesystem::path save_weights(const std::filesystem::path& checkpoints,
                                   std::vector<TensorView> weights, const TrainState& state) {
  return write_checkpoint(checkpoints,
                          {state.iteration, std::move(weights), {}, to_json(state), ""});
}

TrainState state_of(const Checkpoint& checkpoint) {
  TrainState state = from_json(checkpoint.state_json, checkpoint.path);
  state.gemm_algorithms = checkpoint.gemm_algorithms;
  return state;
}

TrainState peek_train_state(const std::filesystem::path& checkpoint) {
  return from_json(read_checkpoint_state(checkpoint), checkpoint);
}

TrainState load_train_state(const std::filesystem::path& path, ParameterArena& arena,
                            const ModelConfig& model, Optimizer& optimizer) {
  const Checkpoint checkpoint = open_checkpoint(path);
  TrainState state = state_of(checkpoint);
  const auto difference = model_difference(state.model, model);
  QUERN_CHECK(!difference, checkpoint.path.string(), ": its model has ", difference->key, " = ",
              difference->found, ", found ", difference->key, " = ", difference->expected,
              " in the configuration");
  load_weights(arena, checkpoint.weights);
  const std::vector<OptimizerBuffer> buffers = optimizer.buffers();
  QUERN_CHECK(buffers.empty() || !checkpoint.moments.names().empty(), path.string(),
              " holds only weights, as `quern import` writes them, expected a training run; "
              "begin one from it with --from ",
              shell_word(path.string()));
  QUERN_CHECK(state.optimizer == optimizer.name(), path.string(),
              ": was trained with optimizer = ", state.optimizer,
              ", found optimizer = ", optimizer.name(), " in the configuration");
  for (const OptimizerBuffer& buffer : buffers) load_buffer(buffer, checkpoint.moments);
  return state;
}

}  // namespace quern
