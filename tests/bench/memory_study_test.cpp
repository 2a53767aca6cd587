#include "bench/memory_study.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tensor/context.h"
#include "train/config_parse.h"

namespace quern {
namespace {

Config tiny() {
  Config config;
  config.model.vocab_size = 200;
  config.model.context = 64;
  config.model.d_model = 64;
  config.model.d_ff = 192;
  config.model.layers = 3;
  config.model.heads = 4;
  config.train.batch = 2;
  return config;
}

int64_t sum(const MemoryByCategory& categories) {
  int64_t bytes = 0;
  for (const int64_t part : categories) bytes += part;
  return bytes;
}

TEST(MemoryStudy, MeasuresWhatTheAllocatorCounts) {
  for (const MemoryPass pass : {MemoryPass::forward, MemoryPass::step}) {
    Context context(kCpu);
    const ContextScope scope(context);
    const MemoryStudy study = study_memory(tiny(), pass, false, false);
    EXPECT_TRUE(study.measured);
    EXPECT_EQ(study.peak_bytes, context.allocator(kCpu)->stats().peak_allocated);
    EXPECT_EQ(peak_of(study.trace).bytes, study.peak_bytes) << name_of(pass);
    EXPECT_EQ(sum(study.by_category), study.peak_bytes) << name_of(pass);
    EXPECT_LT(std::abs(study.deviation()), 5.0) << name_of(pass);
    EXPECT_EQ(study.device, "cpu");
  }
}

TEST(MemoryStudy, PredictsEachCategory) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
      for (const MemoryPass pass : {MemoryPass::forward, MemoryPass::step}) {
        Context context(kCpu);
        const ContextScope scope(context);
        Config config = tiny();
        config.compute.precision = precision;
        config.compute.kernels = kernels;
        const MemoryStudy study = study_memory(config, pass, false, false);
        const PeakEstimate& p = study.predicted;
        const auto found = [&](MemoryCategory category) {
          return study.by_category[static_cast<size_t>(category)];
        };
        EXPECT_EQ(p.parameters, found(MemoryCategory::parameters));
        EXPECT_EQ(p.gradients, found(MemoryCategory::gradients));
        // The optimizer's own few numbers are not predicted.
        EXPECT_NEAR(p.optimizer, found(MemoryCategory::optimizer), 1024);
        // Which moment of several alike is the highest may move what is in which category.
        const double slack = 0.06 * static_cast<double>(study.peak_bytes);
        const auto near = [&](int64_t predicted, MemoryCategory category) {
          EXPECT_NEAR(predicted, found(category), slack)
              << name_of(category) << " of " << name_of(pass) << ", bf16 "
              << (precision == Precision::bf16) << ", fused " << (kernels == KernelKind::fused);
        };
        near(p.activations, MemoryCategory::activations);
        near(p.workspace, MemoryCategory::workspace);
        near(p.other, MemoryCategory::other);
      }
    }
  }
}

TEST(MemoryStudy, ALargeModelIsPredictedForAGpu) {
  Context context(kCpu);
  const ContextScope scope(context);
  Config config = tiny();
  apply_size(config.model, "2.7B");
  const MemoryStudy study = study_memory(config, MemoryPass::step, false, false);
  EXPECT_FALSE(study.measured);
  EXPECT_EQ(study.device, "a GPU");
  EXPECT_TRUE(std::isnan(study.deviation()));
  // 16 bytes a parameter, and the library's workspace.
  EXPECT_GT(study.predicted.total(), 16 * parameter_count(config.model));
  EXPECT_GE(study.predicted.workspace, int64_t{32} << 20);
}

TEST(MemoryStudy, OutOfMemoryIsAResult) {
  Context context(kCpu);
  const ContextScope scope(context);
  context.allocator(kCpu)->set_limit(4096);  // less than the parameters alone
  const MemoryStudy study = study_memory(tiny(), MemoryPass::forward, false, true);
  EXPECT_TRUE(study.measured);
  EXPECT_NE(study.out_of_memory.find("parameters"), std::string::npos) << study.out_of_memory;
  EXPECT_EQ(study.peak_bytes, 0);
}

TEST(MemoryStudy, ReadsPasses) {
  EXPECT_EQ(parse_passes("step,forward"), (std::vector{MemoryPass::step, MemoryPass::forward}));
  EXPECT_THROW(parse_passes("backward"), UsageError);
  EXPECT_THROW(parse_passes("step,step"), UsageError);
  EXPECT_THROW(parse_passes(""), UsageError);
}

TEST(MemoryStudy, RecomputedBlocksAreNoActivations) {
  Context context(kCpu);
  const ContextScope scope(context);
  Config config = tiny();
  config.compute.attention = AttentionKind::naive;
  config.compute.recompute = Recompute::blocks;
  const MemoryStudy study = study_memory(config, MemoryPass::step, false, false);
  const auto activations = study.by_category[static_cast<size_t>(MemoryCategory::activations)];
  EXPECT_NEAR(study.predicted.activations, activations, 0.1 * static_cast<double>(activations));
}

// The count by hand of memory_estimate.cpp, against the allocator, tensor by tensor.
TEST(BlockStudy, TensorsAddUpToTheCountByHand) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
      for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
        for (const Recompute recompute :
             {Recompute::none, Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
          Context context(kCpu);
          const ContextScope scope(context);
          Config config = tiny();
          config.compute.precision = precision;
          config.compute.attention = attention;
          config.compute.kernels = kernels;
          config.compute.recompute = recompute;
          const BlockStudy study = study_block(config);
          const auto predicted = static_cast<double>(study.predicted);
          // 2 %: naive RoPE keeps its sines, which do not grow with the width.
          EXPECT_NEAR(study.measured(), predicted, 0.02 * predicted)
              << "bf16 " << (precision == Precision::bf16) << ", flash "
              << (attention == AttentionKind::flash) << ", fused " << (kernels == KernelKind::fused)
              << ", recompute " << static_cast<int>(recompute);
        }
      }
    }
  }
}

TEST(BlockStudy, NamesWhatRecomputationLeaves) {
  Context context(kCpu);
  const ContextScope scope(context);
  Config config = tiny();
  const auto names = [&](Recompute recompute) {
    config.compute.recompute = recompute;
    std::string text;
    for (const SavedTensor& tensor : study_block(config).tensors) {
      text += tensor.module + ": " + tensor.name + "\n";
    }
    return text;
  };
  EXPECT_EQ(names(Recompute::norms),
            "input_layernorm: add_rms_norm sum\n"
            "input_layernorm: rms_norm rstd\n"
            "self_attn.qkv_proj: linear\n"
            "self_attn: rope_attention\n"
            "self_attn: rope_attention logsumexp\n"
            "post_attention_layernorm: add_rms_norm sum\n"
            "post_attention_layernorm: rms_norm rstd\n"
            "mlp.gate_up_proj: linear\n");
  const std::string with_norms =
      "input_layernorm: add_rms_norm sum\n"
      "input_layernorm: add_rms_norm\n"
      "input_layernorm: rms_norm rstd\n"
      "self_attn.qkv_proj: linear\n"
      "self_attn: rope_attention\n"
      "self_attn: rope_attention logsumexp\n"
      "post_attention_layernorm: add_rms_norm sum\n"
      "post_attention_layernorm: add_rms_norm\n"
      "post_attention_layernorm: rms_norm rstd\n"
      "mlp.gate_up_proj: linear\n";
  EXPECT_EQ(names(Recompute::swiglu), with_norms);
  EXPECT_EQ(names(Recompute::none), with_norms + "mlp.down_proj: swiglu_linear\n");
  EXPECT_EQ(names(Recompute::blocks),
            "post_attention_layernorm: add_rms_norm sum\nmlp.down_proj: swiglu_linear\n");
}

}  // namespace
}  // namespace quern
