#include "train/train_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/checkpoint.h"
#include "train/model_difference.h"
#include "train/weights.h"

namespace quern {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kScalingNames[] = {"none", "linear", "llama3"};  // of RopeScalingKind

Json scaling_json(const RopeScaling& s) {
  return {{"kind", kScalingNames[static_cast<size_t>(s.kind)]},
          {"factor", s.factor},
          {"low_freq_factor", s.low_freq_factor},
          {"high_freq_factor", s.high_freq_factor},
          {"original_context", s.original_context}};
}

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
          {"qkv_bias", m.qkv_bias},
          {"qk_norm", m.qk_norm},
          {"rope_theta", m.rope_theta},
          {"rope_scaling", scaling_json(m.rope_scaling)},
          {"norm_eps", m.norm_eps}};
}

RopeScaling parse_scaling(const Json& j) {
  const std::string kind = j.at("kind");
  const auto* name = std::find(std::begin(kScalingNames), std::end(kScalingNames), kind);
  QUERN_CHECK(name != std::end(kScalingNames), "training state: rope_scaling is \"", kind,
              "\", expected none, linear or llama3");
  RopeScaling s;
  s.kind = static_cast<RopeScalingKind>(name - std::begin(kScalingNames));
  s.factor = j.at("factor");
  s.low_freq_factor = j.at("low_freq_factor");
  s.high_freq_factor = j.at("high_freq_factor");
  s.original_context = j.at("original_context");
  return s;
}

// Keys that checkpoints of before do not have stand for what models had not then.
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
  m.qkv_bias = j.value("qkv_bias", false);
  m.qk_norm = j.value("qk_norm", false);
  m.rope_theta = j.at("rope_theta");
  if (j.contains("rope_scaling")) m.rope_scaling = parse_scaling(j["rope_scaling"]);
  m.norm_eps = j.at("norm_eps");
  return m;
}

std::string to_json(const TrainState& s) {
  Json j = {{"iteration", s.iteration},
            {"step", s.step},
            {"skipped", s.skipped},
            {"sampler", {{"seed", s.sampler.seed}, {"batch", s.sampler.batch}}},
            {"model", model_json(s.model)},
            {"is_text", s.is_text},
            {"tokenizer", s.tokenizer}};
  if (s.best_iteration > 0) j["best"] = {{"loss", s.best_loss}, {"iteration", s.best_iteration}};
  return j.dump(2);
}

TrainState from_json(const std::string& text, const std::filesystem::path& path) {
  try {
    const Json j = Json::parse(text);
    TrainState s;
    s.iteration = j.at("iteration");
    s.step = j.at("step");
    s.skipped = j.at("skipped");
    s.sampler.seed = j.at("sampler").at("seed");
    s.sampler.batch = j.at("sampler").at("batch");
    s.model = parse_model(j.at("model"));
    s.is_text = j.at("is_text");
    s.tokenizer = j.value("tokenizer", s.is_text ? "bytes" : "");  // older ones do not say
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

TrainState read_train_state(const std::filesystem::path& checkpoint) {
  return state_of(open_checkpoint(checkpoint));
}

TrainState peek_train_state(const std::filesystem::path& checkpoint) {
  return from_json(read_checkpoint_state(checkpoint), checkpoint);
}

TrainState load_train_state(const std::filesystem::path& path, ParameterArena& arena,
                            const ModelConfig& model) {
  const Checkpoint checkpoint = open_checkpoint(path);
  TrainState state = state_of(checkpoint);
  const auto difference = model_difference(state.model, model);
  QUERN_CHECK(!difference, path.string(), ": its model has ", difference->key, " = ",
              difference->found, ", found ", difference->key, " = ", difference->expected,
              " in the configuration");
  load_weights(arena, checkpoint.weights);
  if (arena.moment1().defined()) {
    QUERN_CHECK(!checkpoint.moments.entries().empty(), path.string(),
                " holds weights alone, as `quern import` writes them, expected a training run; "
                "begin one from it with --from ",
                path.string());
    load_buffer(arena, arena.moment1(), checkpoint.moments, kMoment1);
    load_buffer(arena, arena.moment2(), checkpoint.moments, kMoment2);
  }
  return state;
}

}  // namespace quern
