// bench step on a GPU: events as the clock, and a phase that runs out of memory.
#include <gtest/gtest.h>

#include "bench/step.h"
#include "run/make_context.h"
#include "tensor/cuda_runtime.h"

namespace quern {
namespace {

class BenchStepOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    config_.model.vocab_size = 500;
    config_.model.context = 64;
    config_.compute.device = DeviceChoice::cuda;
    config_.compute.precision = Precision::bf16;
  }
  StepBenchResult measure(const StepBenchOptions& options) {
    const auto context = make_context(config_.compute, 1);
    const ContextScope scope(*context);
    return bench_step(config_, options);
  }

  Config config_;
};

TEST_F(BenchStepOnGpu, EveryPhaseTakesTime) {
  const StepBenchResult result = measure({{Phase::fwd, Phase::fwdbwd, Phase::step}, 1, 3});
  EXPECT_EQ(result.device, "cuda:0");
  for (const PhaseResult& phase : result.phases) {
    EXPECT_EQ(phase.out_of_memory, "");
    EXPECT_GT(phase.total.median, 0.0) << name_of(phase.phase);
    EXPECT_GT(phase.peak_bytes, 0) << name_of(phase.phase);
  }
  EXPECT_GT(result.phases[2].optimizer.median, 0.0);
}

TEST_F(BenchStepOnGpu, OutOfMemoryIsAResultAndTheNextPhaseRuns) {
  config_.train.batch = 1 << 20;  // 2^26 tokens: activations beyond any GPU's memory
  const StepBenchResult result = measure({{Phase::fwdbwd}, 0, 1});
  EXPECT_NE(result.phases[0].out_of_memory, "");
  config_.train.batch = 1;
  EXPECT_EQ(measure({{Phase::fwdbwd}, 0, 1}).phases[0].out_of_memory, "");
}

}  // namespace
}  // namespace quern
