#include "bench/scaling.h"

#include <gtest/gtest.h>

#include "model/model_cost.h"
#include "support/files.h"
#include "tensor/context.h"

namespace quern {
namespace {

using namespace testing_support;

class Scaling : public ::testing::Test {
 protected:
  static Config of(const char* size, int64_t vocabulary, int64_t batch, Parallel parallel) {
    Config config;
    apply_size(config.model, size);
    config.model.vocab_size = vocabulary;
    config.model.context = 1024;
    config.train.batch = batch;
    config.compute.precision = Precision::bf16;
    config.parallel.parallel = parallel;
    return config;
  }
  static Config small(Parallel parallel = Parallel::ddp) {
    return of("small", 50304, 32, parallel);
  }

  static Cluster on(int64_t gpus, int64_t nodes = 1, double step_ms = 66.3) {
    return {.gpus = gpus, .nodes = nodes, .step_ms = step_ms};
  }

  Context context_{kCpu};
  ContextScope scope_{context_};
};

TEST_F(Scaling, OneGpuTakesItsOwnTime) {
  const ScalingPrediction one = predict_scaling(small(), on(1, 1, 66.3));
  EXPECT_DOUBLE_EQ(one.step_ms(), 66.3);
  EXPECT_DOUBLE_EQ(one.share, 1.0);
  EXPECT_EQ(one.sent_gb, 0.0);
}

TEST_F(Scaling, RanksSendTheirSlicesOfTheGradients) {
  const double gradients = 4e-9 * static_cast<double>(parameter_table(small().model).trainable());
  for (const int64_t gpus : {2, 3, 8, 64}) {
    const double share = 1.0 - 1.0 / static_cast<double>(gpus);
    EXPECT_NEAR(predict_scaling(small(), on(gpus)).sent_gb, 2.0 * gradients * share, 1e-6);
    // Gradients to their ranks, and weights in BF16 from there.
    EXPECT_NEAR(predict_scaling(small(Parallel::zero1), on(gpus)).sent_gb, 1.5 * gradients * share,
                1e-6);
    EXPECT_NEAR(predict_scaling(small(Parallel::zero2), on(gpus)).sent_gb, 1.5 * gradients * share,
                1e-6);
    // Weights in the forward and in the backward.
    EXPECT_NEAR(predict_scaling(small(Parallel::fsdp), on(gpus)).sent_gb, 2.0 * gradients * share,
                1e-6);
  }
}

// A rank exchanges its share of Muon's matrices in BF16, and the step waits.
TEST_F(Scaling, RanksSendMuonsMatricesThereAndBack) {
  Config config = small(Parallel::zero1);
  const ScalingPrediction adamw = predict_scaling(config, on(8));
  config.optimizer.kind = OptimizerKind::muon;
  const ScalingPrediction muon = predict_scaling(config, on(8));
  const double matrices = 12.0 * 768.0 * (4.0 * 768.0 + 3.0 * 3072.0);
  EXPECT_NEAR(muon.sent_gb - adamw.sent_gb, 4e-9 * matrices / 8.0 * 7.0 / 8.0, 1e-9);
  EXPECT_GT(muon.exposed_ms, adamw.exposed_ms);
  config.parallel.parallel = Parallel::ddp;
  EXPECT_NEAR(predict_scaling(config, on(8)).sent_gb, predict_scaling(small(), on(8)).sent_gb,
              1e-6);
}

TEST_F(Scaling, Zero1SharesOptimizerAndMoments) {
  const ScalingPrediction ddp = predict_scaling(small(), on(8));
  const ScalingPrediction zero1 = predict_scaling(small(Parallel::zero1), on(8));
  EXPECT_DOUBLE_EQ(zero1.optimizer_ms, ddp.optimizer_ms / 8.0);
  EXPECT_LT(zero1.memory_bytes, ddp.memory_bytes);
  EXPECT_LT(zero1.step_ms(), ddp.step_ms());
}

// An update and the norm move 24 bytes a parameter with BF16 moments, and 32 without.
TEST_F(Scaling, Bf16MomentsAreFewerBytes) {
  Config config = small();
  const ScalingPrediction fp32 = predict_scaling(config, on(8));
  config.optimizer.moments = MomentType::bf16;
  const ScalingPrediction bf16 = predict_scaling(config, on(8));
  EXPECT_NEAR(bf16.optimizer_ms / fp32.optimizer_ms, 24.0 / 32.0, 1e-9);
  EXPECT_LT(bf16.memory_bytes, fp32.memory_bytes);
}

TEST_F(Scaling, EachStrategyNeedsLessMemoryThanTheOneBefore) {
  const Config config = of("1.5B", 50304, 4, Parallel::ddp);
  const auto parameters = static_cast<double>(parameter_table(config.model).trainable());
  double before = 0.0;
  // Bytes a parameter that 8 ranks share out: AdamW's moments and a part of the FP32 weights, of
  // which every rank keeps the other; gradients; BF16 weights.
  for (const auto& [parallel, saved] : {std::pair{Parallel::ddp, 0.0},
                                        {Parallel::zero1, 10.0},
                                        {Parallel::zero2, 4.0},
                                        {Parallel::fsdp, 2.0}}) {
    const auto bytes = static_cast<double>(
        predict_scaling(of("1.5B", 50304, 4, parallel), on(8, 1, 152.0)).memory_bytes);
    if (saved > 0.0) {
      const double share = (before - bytes) / (saved * parameters * 7.0 / 8.0);
      EXPECT_GT(share, 0.75) << name_of(parallel);
      EXPECT_LT(share, 1.01) << name_of(parallel);
    }
    before = bytes;
  }
}

TEST_F(Scaling, ANetworkIsSlowerThanLinks) {
  const double links = predict_scaling(small(), on(8)).step_ms();
  const double network = predict_scaling(small(), on(8, 4)).step_ms();
  Cluster slow = on(8, 4);
  slow.network = 10.0;
  const double slower = predict_scaling(small(), slow).step_ms();
  EXPECT_LT(links, network);
  EXPECT_LT(network, slower);
}

TEST_F(Scaling, MicroBatchesShareTheGatheringOfTheirSums) {
  Config config = small();
  config.train.accumulate = 8;
  const ScalingPrediction one = predict_scaling(small(), on(8));
  const ScalingPrediction eight = predict_scaling(config, on(8));
  EXPECT_NEAR(eight.sent_gb, one.sent_gb * 4.5, 1e-6);
  EXPECT_DOUBLE_EQ(eight.compute_ms, 8.0 * one.compute_ms);
  EXPECT_DOUBLE_EQ(eight.optimizer_ms, one.optimizer_ms);
  EXPECT_GT(eight.share, one.share);
}

// A rank then adds up its own gradients first; zero2 and fsdp keep no whole gradients.
TEST_F(Scaling, NotDeterministicDdpAndZero1ExchangeOnceAStep) {
  for (const Parallel parallel :
       {Parallel::ddp, Parallel::zero1, Parallel::zero2, Parallel::fsdp}) {
    Config config = small(parallel);
    const double one = predict_scaling(config, on(8)).sent_gb;
    config.train.accumulate = 8;
    const double ordered = predict_scaling(config, on(8)).sent_gb;
    config.compute.deterministic = false;
    const double free = predict_scaling(config, on(8)).sent_gb;
    const bool once = parallel == Parallel::ddp || parallel == Parallel::zero1;
    EXPECT_NEAR(free, once ? one : ordered, 1e-9) << name_of(parallel);
    EXPECT_GT(ordered, one) << name_of(parallel);
  }
}

// docs/scaling.md: two, four and eight H200 of one host.
TEST_F(Scaling, IsNearMeasuredSteps) {
  struct Measured {
    const char* size;
    Parallel parallel;
    int64_t gpus;
    double one, many;
  };
  for (const Measured& m : {Measured{"small", Parallel::ddp, 2, 61.20, 64.98},
                            {"small", Parallel::zero1, 2, 61.20, 64.14},
                            {"small", Parallel::zero2, 2, 61.20, 64.49},
                            {"small", Parallel::fsdp, 2, 61.20, 64.01},
                            {"1.5B", Parallel::ddp, 2, 142.61, 150.78},
                            {"1.5B", Parallel::zero1, 2, 142.61, 145.96},
                            {"1.5B", Parallel::zero2, 2, 142.61, 145.36},
                            {"1.5B", Parallel::fsdp, 2, 142.61, 146.90},
                            {"small", Parallel::ddp, 4, 61.78, 65.37},
                            {"small", Parallel::zero1, 4, 61.78, 63.91},
                            {"small", Parallel::zero2, 4, 61.78, 63.71},
                            {"small", Parallel::fsdp, 4, 61.78, 64.06},
                            {"1.5B", Parallel::ddp, 4, 142.80, 149.14},
                            {"1.5B", Parallel::zero1, 4, 142.80, 141.46},
                            {"1.5B", Parallel::zero2, 4, 142.80, 141.21},
                            {"1.5B", Parallel::fsdp, 4, 142.80, 142.38},
                            {"small", Parallel::ddp, 8, 62.72, 66.00},
                            {"small", Parallel::zero1, 8, 62.72, 64.58},
                            {"small", Parallel::zero2, 8, 62.72, 65.44},
                            {"small", Parallel::fsdp, 8, 62.72, 65.38},
                            {"1.5B", Parallel::zero1, 8, 140.79, 143.55},
                            {"1.5B", Parallel::fsdp, 8, 140.79, 140.07}}) {
    const bool is_small = std::string_view(m.size) == "small";
    Cluster cluster = on(m.gpus, 1, m.one);
    cluster.memory = 3900.0, cluster.link = 290.0;  // an H200's
    const Config config = of(m.size, is_small ? 50304 : 151936, is_small ? 32 : 8, m.parallel);
    const double step = predict_scaling(config, cluster).step_ms();
    EXPECT_NEAR(step / m.many, 1.0, 0.05) << m.size << ' ' << name_of(m.parallel) << " on "
                                          << m.gpus << ": " << step << " ms, measured " << m.many;
  }
}

TEST_F(Scaling, TheRateOfComputingIsWithoutTheOptimizer) {
  const ScalingPrediction fast = predict_scaling(small(), {.gpus = 1, .tflops = 500.0});
  const ScalingPrediction slow = predict_scaling(small(), {.gpus = 1, .tflops = 250.0});
  EXPECT_DOUBLE_EQ(slow.compute_ms, 2.0 * fast.compute_ms);
  EXPECT_DOUBLE_EQ(slow.optimizer_ms, fast.optimizer_ms);
  EXPECT_EQ(fast.slowed_ms, 0.0);
  EXPECT_EQ(fast.exposed_ms, 0.0);
}

TEST_F(Scaling, RecomputationIsThatOfTheConfiguration) {
  Config all = small(), none = small();
  all.compute.recompute = Recompute::blocks;
  none.compute.recompute = Recompute::none;
  EXPECT_LT(predict_scaling(all, on(8)).memory_bytes, predict_scaling(none, on(8)).memory_bytes);
}

TEST_F(Scaling, WhatCannotBeIsAnError) {
  expect_error([] { predict_scaling(small(), on(8, 3)); }, {"8 GPUs", "3 nodes"});
  expect_error([] { predict_scaling(small(), on(2, 1, 1.0)); }, {"1 ms", "optimizer"});
  expect_error([] { predict_scaling(small(), on(8, 0)); }, {"8 GPUs", "0 nodes"});
  expect_error([] { predict_scaling(small(), on(0)); }, {"0 GPUs"});
  expect_error([] { predict_scaling(small(), {.gpus = 2}); }, {"either"});
  Cluster still = on(2);
  still.link = 0.0;
  expect_error([&] { predict_scaling(small(), still); }, {"rate"});
}

}  // namespace
}  // namespace quern
