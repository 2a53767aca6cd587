#include "run/load_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "bench/golden_copy.h"
#include "config/config_parse.h"
#include "hf/hf_export.h"
#include "hf/huggingface.h"
#include "run/hf_model.h"
#include "run/model_difference.h"
#include "run/weights.h"
#include "support/training.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

const std::string kFrom = (golden_folder() / "llama3_rope").string();

Config parse(const std::vector<std::string>& flags) {
  return parse_args(flags, {}, {}, apply_model_from).config;
}

ModelConfig parsed_model(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--from", kFrom});
  return parse(flags).model;
}

void expect_usage(const std::vector<std::string>& flags, std::initializer_list<std::string> parts) {
  expect_error([&] { parsed_model(flags); }, parts);
  EXPECT_THROW(parsed_model(flags), UsageError);
}

TEST(ModelFrom, TakesTheDimensionsOver) {
  ModelConfig expected = read_hf_config(kFrom);
  EXPECT_EQ(expected.context, 128);
  EXPECT_EQ(parsed_model({}), expected);
  EXPECT_EQ(parsed_model({"--d_model", "64", "--head_dim", "16", "--kv_heads", "2", "--vocab", "0",
                          "--rope_scaling", "llama3", "--rope_factor", "8"}),
            expected);
  expected.context = 48;
  EXPECT_EQ(parsed_model({"--ctx", "48"}), expected);
}

TEST(ModelFrom, AnotherDimensionIsAnError) {
  expect_usage({"--d_model", "128"}, {"d_model is 128", kFrom, "has 64", "leave d_model out"});
  expect_usage({"--vocab", "100"}, {"vocab is 100", "has 97"});
  expect_usage({"--kv_heads", "0"}, {"kv_heads is 4", "has 2"});
  expect_usage({"--tied"}, {"tied is true", "has false"});
  expect_usage({"--qk_norm"}, {"qk_norm is true", "has false"});
  expect_usage({"--rope_theta", "5e5"}, {"rope_theta is", "has 10000"});
  expect_usage({"--rope_scaling", "linear", "--rope_factor", "8"}, {"rope_scaling is linear"});
  expect_usage({"--size", "small"}, {"d_model is", "has 64", "leave size out"});
  expect_usage(
      {"--size", "0.5B", "--d_model", "64", "--d_ff", "80", "--layers", "2", "--heads", "4"},
      {"vocab is 151936", "leave size out"});
  expect_usage({"--size", "0.5B", "--d_model", "64", "--d_ff", "80", "--layers", "2", "--heads",
                "4", "--vocab", "0"},
               {"tied is true", "leave size out"});
  expect_usage({"--ctx", "129"}, {"ctx is 129", "takes at most 128"});
  expect_usage({"--resume", "run"}, {"--from and --resume"});
  expect_error([] { parse({"--from", "/nowhere"}); }, {"model.from: /nowhere", "no such"});
}

// The check precedes the construction of a model of that size.
TEST(ModelFrom, TheFilesMustHoldTheModelThatTheirConfigurationSays) {
  for (const auto& [before, after, message] :
       {std::tuple{"\"num_hidden_layers\": 2", "\"num_hidden_layers\": 2000000000",
                   "config.json: num_hidden_layers is 2000000000, but the weights are 21 tensors"},
        {"\"vocab_size\": 97", "\"vocab_size\": 2000000000",
         "model.safetensors: tensor 'model.embed_tokens.weight' has shape"}}) {
    GoldenCopy copy("mha");
    copy.replace("config.json", before, after);
    expect_error([&] { parse({"--from", copy.path().string()}); }, {message});
  }
}

TEST(ModelFrom, AnImportedContextIsBounded) {
  GoldenCopy copy("mha");
  copy.replace("config.json", "\"max_position_embeddings\": 64",
               "\"max_position_embeddings\": 131072");
  const auto context = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"--from", copy.path().string()});
    return parse(flags).model.context;
  };
  EXPECT_EQ(context({}), 2048);
  EXPECT_EQ(context({"--ctx", "4096"}), 4096);
}

class ModelFromTraining : public testing::Test {
 protected:
  ModelFromTraining() {
    std::string tokens;
    for (int i = 0; i < 4000; ++i) tokens += {static_cast<char>(i * i % 97), '\0'};
    write_file(folder_ / "data.bin", tokens);  // nanoGPT's form
  }
  // Trains `steps` steps, starting from the model `from`.
  void train_from(const std::string& from, const std::string& out, int64_t steps,
                  const std::string& resume = "") {
    Config config = tiny_config(folder_ / "data.bin", folder_ / out);
    config.model.from = from;
    apply_model_from(config, {});
    config.train.steps = steps;
    config.train.sample_every = 0;
    if (!resume.empty()) config.run = {"", resume};
    Recorded recorded;
    train(config, recorded);
    losses_ = recorded.losses();
  }

  TemporaryFolder folder_;
  std::vector<double> losses_;
};

// At a learning rate of 0 the weights stay: the export has the weights that training began with.
TEST_F(ModelFromTraining, BeginsWithTheWeights) {
  for (const char* name :
       {"mha", "gqa_tied", "qwen2_bias", "qwen3_norm", "llama3_rope", "linear_rope", "gpt2"}) {
    const fs::path golden = golden_folder() / name;
    Config config = tiny_config(folder_ / "data.bin", folder_ / name);
    config.model.from = golden.string();
    apply_model_from(config, {});
    config.train.steps = 1;
    config.train.sample_every = 0;
    config.optimizer.lr = 0.0;
    Recorded recorded;
    train(config, recorded);
    const fs::path out = folder_ / (std::string(name) + "_out");
    export_model(folder_ / name, out, {.latest = true});
    const TensorSource expected = TensorSource::open(golden), found = TensorSource::open(out);
    ASSERT_EQ(found.names(), expected.names());
    for (const std::string& tensor : expected.names()) {
      EXPECT_TRUE(std::ranges::equal(found.tensor(tensor).data, expected.tensor(tensor).data))
          << name << ": " << tensor;
    }
    EXPECT_EQ(read_file(out / "config.json"), read_file(golden / "config.json"));
  }
}

TEST_F(ModelFromTraining, AShorterContextKeepsTheFirstLearnedPositions) {
  const fs::path golden = golden_folder() / "gpt2";
  import_model(golden, folder_ / "imported");
  for (const fs::path& from : {golden, folder_ / "imported"}) {
    const std::string name = from == golden ? "a" : "b";
    Config config = tiny_config(folder_ / "data.bin", folder_ / name);
    config.model.from = from.string();
    config.model.context = 16;
    apply_model_from(config, {"ctx"});
    EXPECT_EQ(config.model.context, 16);
    config.train.steps = 1;
    config.train.sample_every = 0;
    config.optimizer.lr = 0.0;
    Recorded recorded;
    train(config, recorded);
    const fs::path out = folder_ / (name + "_out");
    export_model(folder_ / name, out, {.latest = true});
    const TensorSource expected = TensorSource::open(golden), found = TensorSource::open(out);
    for (const std::string& tensor : expected.names()) {
      const bool positions = tensor == "transformer.wpe.weight";
      const auto whole = expected.tensor(tensor).data;
      EXPECT_TRUE(std::ranges::equal(found.tensor(tensor).data,
                                     whole.first(positions ? whole.size() / 3 : whole.size())))
          << tensor;
    }
    EXPECT_EQ(read_hf_config(out), static_cast<const ModelConfig&>(config.model))
        << "n_positions is 16, and was 48";
  }
}

TEST_F(ModelFromTraining, AnImportAndItsFolderAreTheSameStart) {
  import_model(kFrom, folder_ / "imported");
  train_from(kFrom, "a", 3);
  const std::vector<double> direct = losses_;
  train_from(folder_ / "imported", "b", 3);
  EXPECT_EQ(losses_, direct);
  train_from((folder_ / "imported/checkpoints/step_00000000").string(), "c", 3);
  EXPECT_EQ(losses_, direct);
  EXPECT_EQ(read_file(folder_ / "b/source/config.json"),
            read_file(fs::path(kFrom) / "config.json"));
}

TEST_F(ModelFromTraining, ARunGoesOnFromARun) {
  train_from(kFrom, "a", 3);
  train_from(folder_ / "a", "b", 2);
  EXPECT_TRUE(fs::exists(folder_ / "b/source/config.json"));
  train_from(folder_ / "b", "b2", 4, folder_ / "b");  // resumed: does not start again
  EXPECT_EQ(losses_.size(), 2u);
}

TEST_F(ModelFromTraining, AnImportCannotBeResumed) {
  import_model(kFrom, folder_ / "imported");
  expect_error([&] { train_from(kFrom, "", 3, folder_ / "imported"); },
               {"step_00000000 holds only weights", "--from"});
}

// on_nonfinite applies to a diverged run, not to its samples.
TEST_F(ModelFromTraining, ASampleWithoutNumbersIsAWarning) {
  const ModelInstance diverged(tiny_model(), ModelOptions{}, InitScheme::truncated, false, 1);
  for (Parameter* parameter : diverged.arena.parameters()) {
    if (parameter->name() == "lm_head.weight") fill(parameter->value(), 3e38);
  }
  export_hf(folder_ / "diverged", tiny_model(), weights_of(diverged.arena).views, {});
  write_corpus(folder_ / "text.txt", 20000);
  Config config = tiny_config(folder_ / "text.txt", folder_ / "run");
  config.model.from = (folder_ / "diverged").string();
  apply_model_from(config, {});
  config.train.steps = 4;
  config.train.sample_every = 2;
  config.train.on_nonfinite = OnNonfinite::skip;
  Recorded recorded;
  EXPECT_EQ(train(config, recorded).steps, 4);
  EXPECT_TRUE(recorded.samples.empty());
  const auto about_samples = std::ranges::count_if(recorded.warnings, [](const std::string& text) {
    return text.find("no sample after step") != std::string::npos;
  });
  EXPECT_EQ(about_samples, 2);
}

TEST_F(ModelFromTraining, OtherWeightsAreRefused) {
  Config config = tiny_config(folder_ / "data.bin", folder_ / "run");
  config.model.from = kFrom;  // without taking over its dimensions
  config.model.vocab_size = 97;
  Recorded recorded;
  expect_error([&] { train(config, recorded); },
               {"model.from", kFrom, "its model has d_model = 64, found d_model = 32"});
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST(ModelFrom, GivenDimensionsOfTheModelAreAccepted) {
  const ModelConfig model = parsed_model({});
  Config config;
  static_cast<ModelConfig&>(config.model) = model;
  for (const char* key : {"heads", "d_model"}) {
    EXPECT_NO_THROW(check_given_model(config, {key}, model, "it")) << key;
  }
  ModelConfig sized = model;
  apply_size(sized, "gpt2");
  sized.context = 100;  // less than the size's
  config.model.size = "gpt2";
  EXPECT_NO_THROW(check_given_model(config, {"size"}, sized, "it"));
  sized.layers += 1;
  EXPECT_THROW(check_given_model(config, {"size"}, sized, "it"), UsageError);
  EXPECT_NO_THROW(check_given_model(config, {}, sized, "it"));
}

// A folder with both files is a run.
TEST(ModelFrom, ARunMayHoldAFileOfThatName) {
  GoldenCopy copy("mha");
  write_file(copy.path() / "config.toml", "");
  Config config;
  config.model.from = copy.path().string();
  expect_error([&] { apply_model_from(config, {}); }, {"has no checkpoint yet"});
}

TEST(CopySource, TakesWhatThereIs) {
  const TemporaryFolder folder;
  GoldenCopy copy("mha");
  fs::remove(copy.path() / "generation_config.json");
  copy_source(copy.path(), folder / "source");
  EXPECT_TRUE(fs::exists(folder / "source/config.json"));
  EXPECT_FALSE(fs::exists(folder / "source/generation_config.json"));
  write_file(folder / "run/config.toml", "");
  copy_source(folder / "run", folder / "none");
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST(ModelDifference, AZeroCountsAsWhatItStandsFor) {
  ModelConfig model = tiny_model();
  ModelConfig zero = model;
  zero.head_dim = 0;
  model.head_dim = model.d_model / model.heads;
  EXPECT_FALSE(model_difference(model, zero));
  zero.heads = 3;  // no divisor of 64
  ASSERT_TRUE(model_difference(model, zero));
  EXPECT_EQ(model_difference(model, zero)->key, "heads");
  zero.heads = 0;
  ASSERT_TRUE(model_difference(model, zero));
}

}  // namespace
}  // namespace quern
