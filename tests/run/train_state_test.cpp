#include "run/train_state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/golden_case.h"
#include "config/config_parse.h"
#include "run/checkpoint.h"
#include "run/make_optimizer.h"
#include "support/checkpoints.h"
#include "support/files.h"
#include "support/thread_ranks.h"
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
    return state_of(open_checkpoint(path_));
  }

  const RopeScaling scaling_{RopeScalingKind::llama3, 8.0, 1.5, 4.5, 16};
  TemporaryFolder folder_;
  const fs::path path_ = folder_ / "run/checkpoints/step_00000001";
};

TEST_F(TrainStateTest, TheModelComesBack) {
  const TrainState state = state_of(open_checkpoint(path_));
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
      {"rope_scaling.kind is \"yarn\"", "llama3"});
}

// A run of commit 8e3bcaa, stopped at step 3, goes on as that version did (fixtures, README.md).
TEST(OldCheckpoint, ResumesWithItsMoments) {
  const fs::path fixture = source_folder() / "tests/fixtures/run_before_optimizers";
  const TemporaryFolder folder;
  fs::copy(fixture, folder / "run", fs::copy_options::recursive);
  write_corpus(folder / "text.txt", 2000);
  Config config = load_config((fixture / "config.toml").string());
  config.data.train = (folder / "text.txt").string();
  config.run = {"", (folder / "run").string()};
  EXPECT_EQ(state_of(open_checkpoint(fixture / "checkpoints/step_00000003")).optimizer, "adamw");
  Recorded recorded;
  train(config, recorded);
  ASSERT_EQ(recorded.steps.size(), 3u);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const auto found = SafetensorsFile::open(folder / "run/checkpoints/step_00000006" / name);
    const auto expected = SafetensorsFile::open(fixture / "finished" / name);
    ASSERT_EQ(found.entries().size(), expected.entries().size()) << name;
    for (const SafetensorsFile::Entry& entry : expected.entries()) {
      const std::vector<float> a = floats_of(found.tensor(entry.name));
      const std::vector<float> b = floats_of(expected.tensor(entry.name));
      ASSERT_EQ(a.size(), b.size());
      double difference = 0.0, norm = 0.0;
      for (size_t i = 0; i < a.size(); ++i) {
        difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        norm += double{b[i]} * b[i];
      }
      // Another compiler or CPU may order sums differently: some units in the last place.
      EXPECT_LE(difference, 1e-10 * norm) << entry.name;
    }
  }
}

TEST_F(TrainStateTest, AnOlderOneNamesNoTokenizer) {
  nlohmann::json state = nlohmann::json::parse(open_checkpoint(path_).state_json);
  state.erase("tokenizer");
  state.erase("data");
  rewrite_checkpoint_state(path_, state.dump());
  EXPECT_EQ(state_of(open_checkpoint(path_)).tokenizer, "bytes");
  state["is_text"] = false;
  rewrite_checkpoint_state(path_, state.dump());
  EXPECT_EQ(state_of(open_checkpoint(path_)).tokenizer, "");
}

// One without moments continues from weights alone.
class Fixed : public Optimizer {
 public:
  explicit Fixed(ParameterArena& arena) : Optimizer(arena, {}) {}
  const char* name() const override { return "fixed"; }
  std::vector<OptimizerBuffer> buffers() const override { return {}; }

 private:
  void fused_update() override {}
  void naive_update(const Tensor&, double, const kernels::StepState&) override {}
};

TEST(TrainState, AnOptimizerWithoutMomentsNeedsNone) {
  const TemporaryFolder folder;
  ModelInstance instance(tiny_model(), {}, InitScheme::normal, true, 1);
  Fixed optimizer(instance.arena);
  TrainState state;
  state.model = tiny_model();
  const fs::path path = save_train_state(folder / "checkpoints", instance.arena, optimizer, state);
  EXPECT_NO_THROW(load_train_state(path, instance.arena, tiny_model(), optimizer));
}

// Moments have their own dtype in a file; read into the other one they are rounded to the nearest,
// or exact.
TEST(TrainState, Bf16MomentsAreSavedAsTheyAreAndLoadBothWays) {
  const TemporaryFolder folder;
  const auto run = [](MomentType moments) {
    struct Run {
      ModelInstance instance{tiny_model(), {}, InitScheme::normal, true, 1};
      std::unique_ptr<Optimizer> optimizer;
    };
    auto made = std::make_unique<Run>();
    Config config;
    config.optimizer.moments = moments;
    made->optimizer = make_optimizer(made->instance.arena, config);
    return made;
  };
  const auto fill_with = [](Optimizer& optimizer, double value) {
    for (const OptimizerBuffer& buffer : optimizer.buffers()) {
      for (const NamedSlice& slice : buffer.slices) {
        fill(ParameterArena::slice(buffer.data, slice), value);
      }
    }
  };
  const auto first_of = [](Optimizer& optimizer) {
    return optimizer.buffers()[0].data.to(DType::f32).to_vector<float>()[0];
  };
  TrainState state;
  state.model = tiny_model();
  const auto wide = run(MomentType::fp32), narrow = run(MomentType::bf16);
  fill_with(*wide->optimizer, 0.3);
  const fs::path fp32 =
      save_train_state(folder / "fp32", wide->instance.arena, *wide->optimizer, state);
  load_train_state(fp32, narrow->instance.arena, tiny_model(), *narrow->optimizer);
  EXPECT_EQ(first_of(*narrow->optimizer), static_cast<float>(bfloat16(0.3f)));

  const fs::path bf16 =
      save_train_state(folder / "bf16", narrow->instance.arena, *narrow->optimizer, state);
  const Checkpoint checkpoint = open_checkpoint(bf16);
  for (const std::string& name : checkpoint.moments.names()) {
    EXPECT_EQ(checkpoint.moments.tensor(name).dtype, DType::bf16) << name;
  }
  EXPECT_EQ(checkpoint.weights.tensor(checkpoint.weights.names()[0]).dtype, DType::f32);
  load_train_state(bf16, wide->instance.arena, tiny_model(), *wide->optimizer);
  EXPECT_EQ(first_of(*wide->optimizer), static_cast<float>(bfloat16(0.3f)));
}

// Also more ranks than tensors.
TEST(TrainState, AnyNumberOfRanksWritesTheSameTensors) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon}) {
    const TemporaryFolder folder;
    const auto save = [&](const std::string& name, const RankTeam& team) {
      Context context(kCpu);
      const ContextScope scope(context);
      Config config;
      config.optimizer.kind = kind;
      ModelInstance instance(tiny_model(), {}, InitScheme::normal, true, 1);
      const auto optimizer = make_optimizer(instance.arena, config);
      float value = 0.0f;
      for (const OptimizerBuffer& buffer : optimizer->buffers()) {
        for (const NamedSlice& slice : buffer.slices) {
          fill(ParameterArena::slice(buffer.data, slice), value += 0.25f);
        }
      }
      TrainState state;
      state.model = tiny_model();
      return save_train_state(folder / name, instance.arena, *optimizer, state, team);
    };
    const Checkpoint one = open_checkpoint(save("one", RankTeam(nullptr)));
    const auto tensors = std::ssize(one.weights.names());
    for (const int ranks : {2, 3, 50}) {
      run_thread_ranks(ranks, {}, [&](Communicator& group) {
        save(cat("ranks", ranks), RankTeam(&group));
        return std::string();
      });
      const auto path = latest_checkpoint(folder / cat("ranks", ranks));
      ASSERT_TRUE(path);
      const Checkpoint several = open_checkpoint(*path);
      EXPECT_EQ(content_of(several.weights), content_of(one.weights));
      EXPECT_EQ(content_of(several.moments), content_of(one.moments));
      const auto files =
          std::ranges::count_if(fs::directory_iterator(*path), [](const auto& entry) {
            const std::string name = entry.path().filename().string();
            return name.starts_with("model-") && name.ends_with(".safetensors");
          });
      EXPECT_GE(files, std::min(ranks, 3) - 1);
      EXPECT_LE(files, std::min<int64_t>(tensors, ranks));
    }
  }
}

}  // namespace
}  // namespace quern
