#include "bench/memory_study.h"

#include <gtest/gtest.h>

#include <cmath>

#include "config/config_parse.h"
#include "model/model_cost.h"
#include "tensor/context.h"

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
    EXPECT_EQ(study.deviation(), 0.0) << name_of(pass);
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
        EXPECT_EQ(study.predicted.by_category, study.by_category)
            << name_of(pass) << ", bf16 " << (precision == Precision::bf16) << ", fused "
            << (kernels == KernelKind::fused);
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
  EXPECT_GE(study.predicted.of(MemoryCategory::workspace), int64_t{32} << 20);
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

TEST(MemoryStudy, RecomputedBlocksAreNoActivations) {
  Context context(kCpu);
  const ContextScope scope(context);
  Config config = tiny();
  config.compute.attention = AttentionKind::naive;
  config.compute.recompute = Recompute::blocks;
  const MemoryStudy study = study_memory(config, MemoryPass::step, false, false);
  EXPECT_EQ(study.predicted.by_category, study.by_category);
  config.compute.recompute = Recompute::norms;
  const MemoryStudy kept = study_memory(config, MemoryPass::step, true, false);
  EXPECT_LT(study.predicted.of(MemoryCategory::activations),
            kept.predicted.of(MemoryCategory::activations) / 2);
}

// Measured on two sequences and scaled; predicted for all sequences.
TEST(BlockStudy, TensorsAddUpToThePrediction) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
      for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
        for (const Recompute recompute :
             {Recompute::none, Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
          Context context(kCpu);
          const ContextScope scope(context);
          Config config = tiny();
          config.train.batch = 6;
          config.compute.precision = precision;
          config.compute.attention = attention;
          config.compute.kernels = kernels;
          config.compute.recompute = recompute;
          const BlockStudy study = study_block(config);
          // Naive RoPE keeps its sines, which do not grow with the batch.
          const double slack =
              kernels == KernelKind::naive ? 0.02 * static_cast<double>(study.predicted) : 0.0;
          EXPECT_NEAR(study.measured(), study.predicted, slack)
              << "bf16 " << (precision == Precision::bf16) << ", flash "
              << (attention == AttentionKind::flash) << ", fused " << (kernels == KernelKind::fused)
              << ", recompute " << static_cast<int>(recompute);
        }
      }
    }
  }
}

TEST(BlockStudy, OutOfMemoryIsAResult) {
  Context context(kCpu);
  const ContextScope scope(context);
  context.allocator(kCpu)->set_limit(4096);
  const BlockStudy study = study_block(tiny());
  EXPECT_NE(study.out_of_memory.find("parameters"), std::string::npos) << study.out_of_memory;
  EXPECT_TRUE(study.tensors.empty());
  EXPECT_GT(study.predicted, 0);
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
