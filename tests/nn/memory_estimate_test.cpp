#include "nn/memory_estimate.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/tape.h"
#include "base/error.h"
#include "nn/arena.h"
#include "nn/transformer_lm.h"
#include "optim/adamw.h"
#include "tensor/factory.h"

namespace quern {
namespace {

constexpr int64_t kBatch = 4, kT = 512;

ModelConfig small() {
  ModelConfig config;
  config.vocab_size = 10000;
  apply_size(config, "small");
  return config;
}

ModelOptions options(Precision precision) {
  ModelOptions o;
  o.precision = precision;
  return o;
}

TEST(MemoryEstimate, StateIs16Or18BytesAParameter) {
  const int64_t P = parameter_count(small());
  EXPECT_EQ(predict_memory(small(), options(Precision::fp32), kBatch, kT).state(), 16 * P);
  EXPECT_EQ(predict_memory(small(), options(Precision::tf32), kBatch, kT).state(), 16 * P);
  EXPECT_EQ(predict_memory(small(), options(Precision::bf16), kBatch, kT).state(), 18 * P);
}

TEST(MemoryEstimate, FusedBf16ActivationsByHand) {
  // A token and block: two norms 2 * (2 * 768 + 4) = 3080; q, k, v and output 4 * 768 * 2 = 6144,
  // logsumexp 12 * 4 = 48; gate and up 2 * 3072 * 2 = 12288: 21560. Twelve blocks and the final
  // norm's 3076, times 2048 tokens.
  ModelOptions o = options(Precision::bf16);
  o.recompute = Recompute::norms;
  EXPECT_EQ(predict_memory(small(), o, kBatch, kT).activations, 2048 * (12 * 21560 + 3076));
  // Kept: two norms' outputs 2 * 2 * 768, and SwiGLU's 2 * 3072.
  o.recompute = Recompute::swiglu;
  EXPECT_EQ(predict_memory(small(), o, kBatch, kT).activations,
            2048 * (12 * (21560 + 3072) + 3076));
  o.recompute = Recompute::none;
  EXPECT_EQ(predict_memory(small(), o, kBatch, kT).activations,
            2048 * (12 * (21560 + 3072 + 6144) + 3076));
}

TEST(MemoryEstimate, LinearInTheBatch) {
  for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
    ModelOptions o = options(Precision::bf16);
    o.kernels = kernels;
    const MemoryEstimate one = predict_memory(small(), o, 1, kT),
                         two = predict_memory(small(), o, 2, kT);
    EXPECT_EQ(two.activations, 2 * one.activations);
    EXPECT_EQ(two.state(), one.state());
  }
}

TEST(MemoryEstimate, NaiveAttentionAddsTheProbabilities) {
  ModelOptions o = options(Precision::bf16);
  const int64_t flash = predict_memory(small(), o, kBatch, kT).activations;
  o.attention = AttentionKind::naive;
  // In twelve blocks, (B, H, T, T) in BF16 in place of (B, H, T) in FP32.
  const int64_t block = kBatch * 12 * kT * kT * 2 - kBatch * 12 * kT * 4;
  EXPECT_EQ(predict_memory(small(), o, kBatch, kT).activations - flash, 12 * block);
}

TEST(MemoryEstimate, EachSavingSaves) {
  const ModelOptions fused = options(Precision::bf16);
  const int64_t least = predict_memory(small(), fused, kBatch, kT).total();
  ModelOptions o = fused;
  o.kernels = KernelKind::naive;
  EXPECT_GT(predict_memory(small(), o, kBatch, kT).total(), least);
  o = fused;
  o.attention = AttentionKind::naive;
  EXPECT_GT(predict_memory(small(), o, kBatch, kT).total(), least);
  o = fused;
  o.residual = ResidualType::fp32;
  EXPECT_GT(predict_memory(small(), o, kBatch, kT).total(), least);
}

TEST(MemoryEstimate, EachRecomputationSavesMore) {
  for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
    ModelOptions o = options(Precision::bf16);
    o.attention = attention;
    o.segment = 3;
    int64_t last = std::numeric_limits<int64_t>::max();
    for (const Recompute recompute :
         {Recompute::none, Recompute::swiglu, Recompute::norms, Recompute::blocks}) {
      o.recompute = recompute;
      const int64_t total = predict_memory(small(), o, kBatch, kT).total();
      EXPECT_LT(total, last) << "recompute " << static_cast<int>(recompute);
      last = total;
    }
  }
}

TEST(MemoryEstimate, RecomputationKeepsTheInputsOfASegment) {
  ModelOptions o = options(Precision::bf16);
  o.recompute = Recompute::blocks;
  o.segment = 5;  // 12 blocks in segments of 5, 5 and 2
  const MemoryEstimate m = predict_memory(small(), o, kBatch, kT);
  EXPECT_EQ(m.activations, 2048 * (3 * 768 * 2 + 2 * 768 * 2 + 3076));
}

TEST(MemoryEstimate, RefusesNoTokens) {
  EXPECT_THROW(predict_memory(small(), ModelOptions{}, 0, kT), Error);
  EXPECT_THROW(predict_memory(small(), ModelOptions{}, 1, 0), Error);
}

// Most bytes that forward and backward hold beyond the arena and the batch.
int64_t measured(const ModelConfig& config, const ModelOptions& options, int64_t T) {
  Context context(kCpu);
  const ContextScope scope(context);
  TransformerLM model(config, options);
  ParameterArena::Options arena_options;
  arena_options.precision = options.precision;
  const ParameterArena arena(model, arena_options);
  const Tensor tokens = random_integers({2, T}, 8), targets = random_integers({2, T}, 8);
  const int64_t before = context.allocator(kCpu)->stats().allocated;
  context.allocator(kCpu)->reset_peak();
  backward(model.loss(tokens, targets));
  return context.allocator(kCpu)->stats().peak_allocated - before;
}

std::vector<ModelOptions> every_way() {
  std::vector<ModelOptions> ways;
  for (const auto& [precision, residual] : {std::pair{Precision::fp32, ResidualType::bf16},
                                            {Precision::bf16, ResidualType::bf16},
                                            {Precision::bf16, ResidualType::fp32}}) {
    for (const KernelKind kernels : {KernelKind::naive, KernelKind::fused}) {
      for (const AttentionKind attention : {AttentionKind::naive, AttentionKind::flash}) {
        for (const auto& [recompute, segment] :
             {std::pair{Recompute::none, 1}, std::pair{Recompute::swiglu, 1},
              std::pair{Recompute::norms, 1}, std::pair{Recompute::blocks, 1},
              std::pair{Recompute::blocks, 4}}) {
          ways.push_back({precision, attention, kernels, residual, recompute, segment});
        }
      }
    }
  }
  return ways;
}

TEST(MemoryEstimate, IsWhatTheAllocatorCounts) {
  ModelConfig config;
  config.context = 64;
  config.d_model = 64;
  config.d_ff = 96;
  config.layers = 6;
  config.heads = 4;
  config.kv_heads = 2;
  for (const auto& [vocab, normed] : {std::pair{32, false}, {2000, false}, {32, true}}) {
    config.vocab_size = vocab;  // the peak in the last block, or in the head
    config.qkv_bias = config.qk_norm = normed;
    for (const ModelOptions& o : every_way()) {
      const MemoryEstimate m = predict_memory(config, o, 2, 64);
      const auto predicted = static_cast<double>(m.total() - m.state());
      // 12 KiB: the rotary table, targets and one number a row, which do not grow with the width.
      EXPECT_NEAR(predicted, static_cast<double>(measured(config, o, 64)),
                  0.03 * predicted + 12 * 1024)
          << "vocabulary " << vocab << ", bf16 " << (o.precision == Precision::bf16)
          << ", fp32 residual " << (o.residual == ResidualType::fp32) << ", fused "
          << (o.kernels == KernelKind::fused) << ", flash " << (o.attention == AttentionKind::flash)
          << ", recompute " << static_cast<int>(o.recompute) << ", segment " << o.segment;
    }
  }
}

// Most bytes that a pass holds, from an empty allocator on.
int64_t measured_peak(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                      MemoryPass pass) {
  Context context(kCpu);
  const ContextScope scope(context);
  const bool training = pass == MemoryPass::step;
  TransformerLM model(config, options);
  ParameterArena::Options arena_options;
  arena_options.precision = options.precision;
  arena_options.training = training;
  ParameterArena arena(model, arena_options);
  const Shape shape{batch, config.context};
  const Tensor tokens = random_integers(shape, 8), targets = random_integers(shape, 8);
  const Allocator& allocator = *context.allocator(kCpu);
  if (!training) {
    const NoGrad no_grad;
    model.loss(tokens, targets);
    return allocator.stats().peak_allocated;
  }
  AdamWOptions adamw_options;
  adamw_options.kernels = options.kernels;
  AdamW optimizer(arena, adamw_options);
  const Variable loss = model.loss(tokens, targets);
  backward(loss);
  optimizer.step(1e-3, loss.value());
  return allocator.stats().peak_allocated;
}

struct PeakCase {
  const char* what;
  int64_t vocab, T, d_model, d_ff, layers, heads, kv_heads;
  bool tied;
  bool qkv_bias = false, qk_norm = false;
  int64_t head_dim = 0;

  ModelConfig config() const {
    ModelConfig config;
    config.vocab_size = vocab;
    config.context = T;
    config.d_model = d_model;
    config.d_ff = d_ff;
    config.layers = layers;
    config.heads = heads;
    config.kv_heads = kv_heads;
    config.head_dim = head_dim;
    config.tied = tied;
    config.qkv_bias = qkv_bias;
    config.qk_norm = qk_norm;
    return config;
  }
};

// Where the peak lies: in the feed-forward, in the scores, in the head, in the optimizer.
constexpr PeakCase kPeakCases[] = {{"wide", 64, 64, 64, 256, 4, 4, 0, false},
                                   {"long", 64, 256, 32, 64, 3, 4, 0, false},
                                   {"vocabulary", 4000, 64, 32, 96, 2, 2, 0, false},
                                   {"weights", 2000, 16, 96, 256, 2, 4, 2, true},
                                   {"one block", 64, 128, 64, 192, 1, 4, 1, false},
                                   {"biased", 64, 64, 64, 128, 3, 4, 2, true, true},
                                   {"normed", 64, 64, 64, 96, 3, 4, 2, true, false, true, 32},
                                   {"normed heads", 64, 96, 48, 64, 2, 3, 0, true, true, true}};

TEST(MemoryEstimate, PeaksAreWithin5PercentOfTheAllocators) {
  for (const PeakCase& c : kPeakCases) {
    const ModelConfig config = c.config();
    for (const ModelOptions& o : every_way()) {
      for (const MemoryPass pass : {MemoryPass::forward, MemoryPass::step}) {
        const auto predicted =
            static_cast<double>(predict_peak(config, o, 2, c.T, pass, current_target()).total());
        const auto found = static_cast<double>(measured_peak(config, o, 2, pass));
        // 8 KiB: targets and one number a row, which do not grow with the width.
        EXPECT_NEAR(predicted, found, 0.05 * found + 8 * 1024)
            << c.what << (pass == MemoryPass::step ? " step" : " forward") << ", bf16 "
            << (o.precision == Precision::bf16) << ", fp32 residual "
            << (o.residual == ResidualType::fp32) << ", fused " << (o.kernels == KernelKind::fused)
            << ", flash " << (o.attention == AttentionKind::flash) << ", recompute "
            << static_cast<int>(o.recompute) << ", segment " << o.segment << ": "
            << predicted / found;
      }
    }
  }
}

TEST(MemoryEstimate, CountsTheArenaToTheElement) {
  for (const PeakCase& c : kPeakCases) {
    const ModelConfig config = c.config();
    TransformerLM model(config, {});
    const ParameterArena arena(model, {});
    EXPECT_EQ(arena_elements(config), arena.size()) << c.what;
  }
}

TEST(MemoryEstimate, AGpuAddsTheLibrarysWorkspaceAndSplitOperands) {
  // By hand, at the fused head in FP32: the planes of 2048 rows of dlogits and of the weight, 6
  // bytes an element, and 32 MiB. The head is the peak of small's step here.
  ModelOptions o = options(Precision::fp32);
  const auto peak = [&](const MemoryTarget& target) {
    return predict_peak(small(), o, kBatch, kT, MemoryPass::step, target);
  };
  const int64_t planes = 6 * (2048 * 10000 + 10000 * 768);
  EXPECT_EQ(peak(hopper_target()).workspace, planes + (int64_t{32} << 20));
  EXPECT_EQ(peak(MemoryTarget{}).workspace, 0);
  o.precision = Precision::tf32;
  EXPECT_EQ(peak(hopper_target()).workspace, int64_t{32} << 20);
}

TEST(MemoryEstimate, AtTheMlpsFirstProductOneNormIsComputedAgain) {
  // There a large model's step in FP32 peaks on a GPU. Of the two norms of 32 blocks swiglu has all
  // outputs then, norms the one that the product reads.
  ModelOptions o = options(Precision::fp32);
  ModelConfig config = small();
  apply_size(config, "2.7B");
  const auto peak = [&](Recompute recompute) {
    o.recompute = recompute;
    return predict_peak(config, o, kBatch, kT, MemoryPass::step, hopper_target());
  };
  const PeakEstimate swiglu = peak(Recompute::swiglu), norms = peak(Recompute::norms);
  EXPECT_EQ(swiglu.total() - norms.total(), (2 * 32 - 1) * 2048 * 2560 * 4);
  // The planes of its weight and of its output's gradient, 6 bytes an element, and 32 MiB.
  EXPECT_EQ(swiglu.workspace, 6 * 2 * 10240 * (2048 + 2560) + (int64_t{32} << 20));
}

// `quern memory` on an NVIDIA H200 at batch 4 and vocabulary 10000.
struct H200Case {
  const char* size;
  int64_t T;
  Precision precision;
  AttentionKind attention;
  KernelKind kernels;
  Recompute recompute;
  MemoryPass pass;
  double mib;
};

TEST(MemoryEstimate, IsWithin5PercentOfPeaksMeasuredOnAGpu) {
  const auto fp32 = Precision::fp32, bf16 = Precision::bf16;
  const auto naive = AttentionKind::naive, flash = AttentionKind::flash;
  const auto small_ops = KernelKind::naive, fused = KernelKind::fused;
  const auto none = Recompute::none, norms = Recompute::norms, blocks = Recompute::blocks;
  const auto forward = MemoryPass::forward, step = MemoryPass::step;
  const H200Case cases[] = {{"small", 512, fp32, flash, fused, norms, forward, 692.3},
                            {"small", 1024, fp32, naive, small_ops, norms, forward, 1038.9},
                            {"small", 1024, bf16, naive, fused, norms, forward, 1026.3},
                            {"small", 512, fp32, naive, small_ops, none, step, 4721.5},
                            {"small", 512, bf16, flash, small_ops, blocks, step, 3221.5},
                            {"small", 512, fp32, naive, fused, blocks, step, 2417.8},
                            {"medium", 1024, fp32, naive, fused, norms, step, 18507.6},
                            {"2.7B", 512, fp32, flash, fused, norms, step, 61604.5},
                            {"2.7B", 1024, bf16, naive, fused, none, step, 79739.1},
                            {"2.7B", 128, bf16, flash, fused, norms, forward, 19571.0}};
  for (const H200Case& c : cases) {
    ModelConfig config = small();
    apply_size(config, c.size);
    config.context = c.T;
    ModelOptions o = options(c.precision);
    o.attention = c.attention;
    o.kernels = c.kernels;
    o.recompute = c.recompute;
    const PeakEstimate p = predict_peak(config, o, kBatch, c.T, c.pass, hopper_target());
    EXPECT_NEAR(static_cast<double>(p.total()) / (1 << 20), c.mib, 0.05 * c.mib)
        << c.size << " at " << c.T;
  }
}

}  // namespace
}  // namespace quern
