#include "run/train_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "config/config_table.h"
#include "io/json_file.h"
#include "run/model_difference.h"
#include "run/weights.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

using Pointer = Json::json_pointer;

Json model_json(const ModelConfig& model) {
  Config config;
  static_cast<ModelConfig&>(config.model) = model;
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
            {"sampler", {{"seed", s.sampler.seed}, {"batch", s.sampler.batch}}},
            {"model", model_json(s.model)},
            {"optimizer", s.optimizer},
            {"is_text", s.is_text},
            {"tokenizer", s.tokenizer},
            {"data", {{"train", s.train_data}, {"validation", s.validation_data}}}};
  if (s.best_iteration > 0) j["best"] = {{"loss", s.best_loss}, {"iteration", s.best_iteration}};
  return j.dump(2);
}

TrainState from_json(const std::string& text, const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(text);
  const JsonPlace state{json, cat((path / "manifest.json").string(), ": state")};
  TrainState s;
  s.iteration = state.at("iteration").count();
  s.step = state.at("step").count();
  s.skipped = state.at("skipped").count();
  const JsonPlace sampler = state.at("sampler");
  s.sampler = {sampler.at("seed").unsigned_number(), sampler.at("batch").unsigned_number()};
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

}  // namespace

std::filesystem::path save_train_state(const std::filesystem::path& checkpoints,
                                       const ParameterArena& arena, const Optimizer& optimizer,
                                       TrainState state,
                                       const std::vector<OptimizerBuffer>& gathered) {
  state.optimizer = optimizer.name();
  std::vector<OptimizerBuffer> buffers = gathered;
  if (buffers.empty()) {
    buffers = optimizer.buffers();
    buffers.insert(buffers.begin(), values_of(arena));
  }
  const HostTensors values = host_tensors(buffers[0]);
  CheckpointContents contents{
      state.iteration, values.views, {}, to_json(state), state.gemm_algorithms};
  std::vector<Tensor> memory;  // of the views
  for (size_t i = 1; i < buffers.size(); ++i) {
    const HostTensors host = host_tensors(buffers[i]);
    memory.push_back(host.memory);
    contents.moments.insert(contents.moments.end(), host.views.begin(), host.views.end());
  }
  return write_checkpoint(checkpoints, contents);
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
  QUERN_CHECK(buffers.empty() || !checkpoint.moments.entries().empty(), path.string(),
              " holds only weights, as `quern import` writes them, expected a training run; "
              "begin one from it with --from ",
              path.string());
  QUERN_CHECK(state.optimizer == optimizer.name(), path.string(),
              ": was trained with optimizer = ", state.optimizer,
              ", found optimizer = ", optimizer.name(), " in the configuration");
  for (const OptimizerBuffer& buffer : buffers) load_buffer(buffer, checkpoint.moments);
  return state;
}

}  // namespace quern
