// The captured training step: replays give the bits of kernels launched one by one.
#include "train/training_step.h"
#include "run/make_context.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/adamw.h"
#include "run/make_optimizer.h"
#include "support/training.h"
#include "tensor/cuda_runtime.h"
#include "tensor/factory.h"

namespace quern {
namespace {

class GpuTrainingStep : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    compute_.device = DeviceChoice::cuda;
    compute_.precision = Precision::bf16;
  }

  struct Result {
    std::vector<float> losses;
    std::vector<float> weights;
    bool operator==(const Result&) const = default;
  };

  // `lengths` are the contexts of the steps in turn.
  Result train(bool capture, int64_t accumulate, const std::vector<int64_t>& lengths) const {
    const auto context = make_context(compute_, 1);
    const ContextScope scope(*context);
    ModelInstance instance(model_, compute_, InitScheme::normal, true, 1);
    Config config;
    config.optimizer.kind = optimizer_;
    const auto owned = make_optimizer(instance.arena, config);
    Optimizer& optimizer = *owned;
    TrainingStep step(instance, optimizer, capture);
    Result result;
    for (size_t i = 0; i < lengths.size(); ++i) {
      optimizer.set_learning_rate(1e-2 / static_cast<double>(1 + i));
      for (MicroBatch part{0, accumulate}; part.index < part.count; ++part.index) {
        const Tensor tokens = random_integers({3, lengths[i]}, 300);
        const Tensor targets = random_integers({3, lengths[i]}, 300);
        step.run(tokens, targets, part);
      }
      result.losses.push_back(step.loss().to_vector<float>()[0]);
      if (step.z_loss().defined()) result.losses.push_back(step.z_loss().to_vector<float>()[0]);
    }
    result.weights = instance.arena.exact_values().to_vector<float>();
    return result;
  }

  ComputeSection compute_;
  OptimizerKind optimizer_ = OptimizerKind::adamw;
  ModelConfig model_ = testing_support::tiny_model();
};

// Dropout draws on the device, with a new draw at every replay.
TEST_F(GpuTrainingStep, ReplaysAreBitEqualToLaunchesWithDropout) {
  compute_.z_loss = 1e-3;
  const std::vector<int64_t> lengths(6, 48);
  const Result without = train(true, 4, lengths);
  compute_.dropout = 0.2;
  const Result launched = train(false, 4, lengths);
  EXPECT_NE(launched, without);
  EXPECT_EQ(launched, train(true, 4, lengths));
  compute_.recompute = Recompute::blocks;
  EXPECT_EQ(launched, train(true, 4, lengths));
}

TEST_F(GpuTrainingStep, ReplaysAreBitEqualToLaunches) {
  for (const int64_t accumulate : {1, 2, 4}) {
    for (const AttentionKind attention : {AttentionKind::flash, AttentionKind::naive}) {
      compute_.attention = attention;
      const std::vector<int64_t> lengths(6, 48);
      const Result launched = train(false, accumulate, lengths);
      EXPECT_EQ(launched, train(true, accumulate, lengths)) << "accumulate " << accumulate;
      EXPECT_NE(launched.losses.front(), launched.losses.back());
    }
  }
}

TEST_F(GpuTrainingStep, ReplaysOfMuonAreBitEqualToLaunches) {
  optimizer_ = OptimizerKind::muon;
  const std::vector<int64_t> lengths(6, 48);
  for (const int64_t accumulate : {1, 2}) {
    const Result launched = train(false, accumulate, lengths);
    EXPECT_EQ(launched, train(true, accumulate, lengths)) << "accumulate " << accumulate;
    EXPECT_NE(launched.losses.front(), launched.losses.back());
  }
}

// More kinds of step than recordings are kept: the oldest are dropped and captured again.
TEST_F(GpuTrainingStep, ShapesTakeTurns) {
  std::vector<int64_t> lengths;
  for (int round = 0; round < 3; ++round) {
    for (int64_t length = 5; length < 48; length += 4) lengths.insert(lengths.end(), 2, length);
  }
  EXPECT_EQ(train(false, 1, lengths), train(true, 1, lengths));
}

// Memory that a replay overwrites may be used between steps; holding it during a step throws.
TEST_F(GpuTrainingStep, IdleMemoryIsGivenBackBeforeTheNextStep) {
  const auto context = make_context(compute_, 1);
  const ContextScope scope(*context);
  ModelInstance instance(model_, compute_, InitScheme::normal, true, 1);
  AdamW optimizer(instance.arena, {});
  TrainingStep step(instance, optimizer, true);
  optimizer.set_learning_rate(1e-3);
  const Tensor tokens = random_integers({3, 48}, 300), targets = random_integers({3, 48}, 300);
  Tensor held;
  for (int i = 0; i < 3; ++i) {
    step.run(tokens, targets, {0, 1});
    const PoolScope memory = step.idle_memory();
    held = ones({1000});
    EXPECT_EQ(held.to_vector<float>()[999], 1.0f);
    if (i < 2) held = {};
  }
  EXPECT_THROW(step.run(tokens, targets, {0, 1}), Error);
  held = {};
  step.run(tokens, targets, {0, 1});
}

TEST_F(GpuTrainingStep, OnlyFusedKernelsAreCaptured) {
  const auto context = make_context(compute_, 1);
  const ContextScope scope(*context);
  EXPECT_TRUE(captures_steps(compute_));
  compute_.kernels = KernelKind::naive;
  EXPECT_FALSE(captures_steps(compute_));
  compute_.kernels = KernelKind::fused;
  compute_.graph = false;
  EXPECT_FALSE(captures_steps(compute_));
}

TEST_F(GpuTrainingStep, AFailedCaptureLeavesTheStreamUsable) {
  const auto context = make_context(compute_, 1);
  const ContextScope scope(*context);
  const Tensor x = ones({100});
  EXPECT_THROW(Graph([&] {
                 fill(x, 3.0);
                 fail("planted");
               }),
               Error);
  EXPECT_EQ(x.to_vector<float>()[99], 1.0f);
  const Graph graph([&] { fill(x, 2.0); });
  EXPECT_EQ(x.to_vector<float>()[99], 1.0f) << "a capture ran";
  graph.launch();
  EXPECT_EQ(x.to_vector<float>()[99], 2.0f);
}

}  // namespace
}  // namespace quern
