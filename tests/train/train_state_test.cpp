#include "train/train_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/checkpoint.h"
#include "support/files.h"
#include "support/training.h"

namespace quern {
namespace {

namespace fs = std::filesystem;
using namespace testing_support;

// The checkpoint of a run of one step.
class TrainStateTest : public testing::Test {
 protected:
  void SetUp() override {
    write_corpus(folder_ / "text.txt", 2000);
    Config config = tiny_config(folder_ / "text.txt", folder_ / "run");
    config.train.steps = 1;
    config.model.qkv_bias = true;
    config.model.qk_norm = true;
    config.model.rope_scaling = scaling_;
    Recorded recorded;
    train(config, recorded);
  }

  // The state, with the model's JSON changed.
  template <class F>
  TrainState changed(F&& edit) const {
    nlohmann::json state = nlohmann::json::parse(open_checkpoint(path_).state_json);
    edit(state.at("model"));
    rewrite_checkpoint_state(path_, state.dump());
    return read_train_state(path_);
  }

  const RopeScaling scaling_{RopeScalingKind::llama3, 8.0, 1.5, 4.5, 16};
  TemporaryFolder folder_;
  const fs::path path_ = folder_ / "run/checkpoints/step_00000001";
};

TEST_F(TrainStateTest, TheModelComesBack) {
  const TrainState state = read_train_state(path_);
  EXPECT_TRUE(state.model.qkv_bias);
  EXPECT_TRUE(state.model.qk_norm);
  EXPECT_EQ(state.model.rope_scaling, scaling_);
}

TEST_F(TrainStateTest, AnOlderOneHasNoneOfTheVariants) {
  const TrainState state = changed([](nlohmann::json& model) {
    for (const char* key : {"qkv_bias", "qk_norm", "rope_scaling"}) ASSERT_EQ(model.erase(key), 1u);
  });
  EXPECT_FALSE(state.model.qkv_bias);
  EXPECT_FALSE(state.model.qk_norm);
  EXPECT_EQ(state.model.rope_scaling, RopeScaling{});
}

TEST_F(TrainStateTest, AnUnknownScalingIsRefused) {
  expect_error(
      [&] { changed([](nlohmann::json& model) { model["rope_scaling"]["kind"] = "yarn"; }); },
      {"rope_scaling is \"yarn\"", "llama3"});
}

}  // namespace
}  // namespace quern
