#include "train/train_state.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/checkpoint.h"
#include "train/weights.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

Json model_json(const ModelConfig& m) {
  return {{"vocab_size", m.vocab_size},
          {"context", m.context},
          {"d_model", m.d_model},
          {"d_ff", m.d_ff},
          {"layers", m.layers},
          {"heads", m.heads},
          {"kv_heads", m.kv_heads},
          {"head_dim", m.head_dim},
          {"tied", m.tied},
          {"rope_theta", m.rope_theta},
          {"norm_eps", m.norm_eps}};
}

ModelConfig parse_model(const Json& j) {
  ModelConfig m;
  m.vocab_size = j.at("vocab_size");
  m.context = j.at("context");
  m.d_model = j.at("d_model");
  m.d_ff = j.at("d_ff");
  m.layers = j.at("layers");
  m.heads = j.at("heads");
  m.kv_heads = j.at("kv_heads");
  m.head_dim = j.at("head_dim");
  m.tied = j.at("tied");
  m.rope_theta = j.at("rope_theta");
  m.norm_eps = j.at("norm_eps");
  return m;
}

std::string to_json(const TrainState& s) {
  Json j = {{"iteration", s.iteration},
            {"step", s.step},
            {"skipped", s.skipped},
            {"sampler", {{"seed", s.sampler.seed}, {"batch", s.sampler.batch}}},
            {"model", model_json(s.model)},
            {"is_text", s.is_text}};
  if (s.best_iteration > 0) j["best"] = {{"loss", s.best_loss}, {"iteration", s.best_iteration}};
  return j.dump(2);
}

TrainState from_json(const Checkpoint& checkpoint, const std::filesystem::path& path) {
  try {
    const Json j = Json::parse(checkpoint.state_json);
    TrainState s;
    s.gemm_algorithms = checkpoint.gemm_algorithms;
    s.iteration = j.at("iteration");
    s.step = j.at("step");
    s.skipped = j.at("skipped");
    s.sampler.seed = j.at("sampler").at("seed");
    s.sampler.batch = j.at("sampler").at("batch");
    s.model = parse_model(j.at("model"));
    s.is_text = j.at("is_text");
    if (j.contains("best")) {
      s.best_loss = j["best"].at("loss");
      s.best_iteration = j["best"].at("iteration");
    }
    return s;
  } catch (const nlohmann::json::exception& error) {
    fail(cat(path.string(), ": the training state in manifest.json is not usable: ", error.what()));
  }
}

constexpr const char* kMoment1 = "moment1.";
constexpr const char* kMoment2 = "moment2.";

}  // namespace

std::filesystem::path save_train_state(const std::filesystem::path& checkpoints,
                                       const ParameterArena& arena, const TrainState& state) {
  const HostTensors values = weights_of(arena);
  const HostTensors m = host_tensors(arena, arena.moment1(), kMoment1);
  const HostTensors v = host_tensors(arena, arena.moment2(), kMoment2);
  CheckpointContents contents{state.iteration, values.views, m.views, to_json(state),
                              state.gemm_algorithms};
  contents.moments.insert(contents.moments.end(), v.views.begin(), v.views.end());
  return write_checkpoint(checkpoints, contents);
}

void update_train_state(const std::filesystem::path& checkpoints, const TrainState& state) {
  rewrite_checkpoint_state(checkpoint_path(checkpoints, state.iteration), to_json(state));
}

TrainState read_train_state(const std::filesystem::path& checkpoint) {
  return from_json(open_checkpoint(checkpoint), checkpoint);
}

TrainState load_train_state(const std::filesystem::path& path, ParameterArena& arena,
                            const ModelConfig& model) {
  const Checkpoint checkpoint = open_checkpoint(path);
  TrainState state = from_json(checkpoint, path);
  QUERN_CHECK(state.model == model, path.string(),
              " is of another model than the configuration describes");
  load_weights(arena, checkpoint.weights);
  if (arena.moment1().defined()) {
    load_buffer(arena, arena.moment1(), checkpoint.moments, kMoment1);
    load_buffer(arena, arena.moment2(), checkpoint.moments, kMoment2);
  }
  return state;
}

}  // namespace quern
