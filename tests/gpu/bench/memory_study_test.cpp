// quern memory on a GPU: the measured parts add up, and the prediction holds there.
#include "bench/memory_study.h"

#include <gtest/gtest.h>

#include <cmath>

#include "run/make_context.h"
#include "tensor/context.h"
#include "tensor/cuda_runtime.h"
#include "train/choose_recompute.h"

namespace quern {
namespace {

Config tiny(const char* size) {
  Config config;
  apply_size(config.model, size);
  config.model.vocab_size = 10000;
  config.model.layers = 4;
  config.model.context = 256;
  config.train.batch = 4;
  config.compute.device = DeviceChoice::cuda;
  return config;
}

void expect_exact(const Config& config, MemoryPass pass) {
  const auto context = make_context(config.compute, 0);
  const ContextScope scope(*context);
  const MemoryStudy study = study_memory(config, pass, false, false);
  const ComputeSection& o = config.compute;
  EXPECT_TRUE(study.measured);
  EXPECT_EQ(peak_of(study.trace).bytes, study.peak_bytes);
  EXPECT_EQ(study.predicted.on_host, study.on_host_bytes);
  EXPECT_EQ(study.predicted.by_category, study.by_category)
      << name_of(pass) << ", precision " << static_cast<int>(o.precision) << ", flash "
      << (o.attention == AttentionKind::flash) << ", fused " << (o.kernels == KernelKind::fused)
      << ", recompute " << static_cast<int>(o.recompute) << ", dropout " << o.dropout
      << ", learned positions " << (config.model.positions == PositionKind::learned) << ": "
      << study.predicted.total() << " and " << study.peak_bytes;
}

TEST(MemoryStudyOnGpu, PredictionIsExact) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  Config config = tiny("small");
  for (const Precision precision :
       {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp8}) {
    for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
      for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
        config.compute.precision = precision;
        config.compute.attention = attention;
        config.compute.kernels = kernels;
        for (const Recompute recompute :
             {Recompute::none, Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
          config.compute.recompute = recompute;
          for (const MemoryPass pass : {MemoryPass::forward, MemoryPass::step}) {
            expect_exact(config, pass);
          }
        }
      }
    }
  }
}

// A step of GPT-2, and with every option of a step.
TEST(MemoryStudyOnGpu, PredictionOfGpt2MuonDropoutAndZLossIsExact) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const char* size : {"small", "gpt2"}) {
    for (const Precision precision :
         {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp8}) {
      for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
        for (const Recompute recompute : {Recompute::none, Recompute::blocks}) {
          Config config = tiny(size);
          config.compute.precision = precision;
          config.compute.kernels = kernels;
          config.compute.recompute = recompute;
          expect_exact(config, MemoryPass::step);
          config.compute.dropout = 0.1;
          config.compute.z_loss = 1e-4;
          config.optimizer.kind = OptimizerKind::muon;
          expect_exact(config, MemoryPass::step);
        }
      }
    }
  }
}

// The head's products read a copy of its weight.
TEST(MemoryStudyOnGpu, PredictionOfAnOddVocabularyIsExact) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    Config config = tiny("gpt2");
    config.model.vocab_size = 10007;
    config.compute.precision = precision;
    for (const MemoryPass pass : {MemoryPass::forward, MemoryPass::step}) {
      expect_exact(config, pass);
    }
  }
}

TEST(MemoryStudyOnGpu, PredictionOfWhatIsOnTheHostIsExact) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Offload offload : {Offload::none, Offload::moments, Offload::optimizer}) {
    for (const auto& [activations, recompute] : {std::pair(false, Recompute::blocks),
                                                 {true, Recompute::blocks},
                                                 {true, Recompute::norms}}) {
      for (const OptimizerSection& optimizer :
           {OptimizerSection{}, OptimizerSection{.moments = MomentType::bf16},
            OptimizerSection{.kind = OptimizerKind::muon}}) {
        Config config = tiny("small");
        config.compute.precision = Precision::bf16;
        config.compute.offload = offload;
        config.compute.recompute = recompute;
        config.compute.offload_activations = activations;
        config.optimizer = optimizer;
        expect_exact(config, MemoryPass::step);
      }
    }
  }
}

// Both MLPs, in each precision that supports it. With one layer nothing leaves the GPU.
TEST(MemoryStudyOnGpu, PredictionOfHiddenLayersOnTheHostIsExact) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const char* size : {"small", "gpt2"}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp8}) {
      for (const int64_t layers : {1, 4}) {
        Config config = tiny(size);
        if (precision == Precision::fp8 && config.model.mlp == MlpKind::gelu) continue;
        config.model.layers = layers;
        config.compute.precision = precision;
        config.compute.recompute = Recompute::swiglu;
        config.compute.offload_activations = true;
        expect_exact(config, MemoryPass::step);
      }
    }
  }
}

// The choice of kept tensors depends on the memory available to the run.
TEST(DecidedOptionsOnGpu, MoreIsKeptWhereMemoryIsPlenty) {
  if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  Config config;
  apply_size(config.model, "small");
  config.model.vocab_size = 10000;
  config.model.layers = 4;
  config.compute.device = DeviceChoice::cuda;
  config.compute.precision = Precision::bf16;
  const auto context = make_context(config.compute, 0);
  const ContextScope scope(*context);
  EXPECT_EQ(decided_options(config).recompute, Recompute::none);
  const auto mib = [&](Recompute recompute) {
    Config changed = config;
    changed.compute.recompute = recompute;
    return predict_peak(changed, MemoryPass::step, current_target()).total() / (int64_t{1} << 20);
  };
  const auto decided = [&](int64_t limit) {
    config.compute.memory_limit = limit;
    return decided_options(config).recompute;
  };
  const int64_t none = mib(Recompute::none), swiglu = mib(Recompute::swiglu);
  EXPECT_EQ(decided(3 * (none + 1)), Recompute::none);
  EXPECT_EQ(decided(3 * none - 1), Recompute::swiglu);
  EXPECT_EQ(decided(2 * (swiglu + 1)), Recompute::swiglu);
  EXPECT_EQ(decided(2 * swiglu - 1), Recompute::norms);
}

}  // namespace
}  // namespace quern
