// How a model computes, as opposed to what it is (model_config.h). Every combination runs on every
// device. Dropout and the z-loss aside, the trained weights do not depend on it beyond rounding.
#pragma once

#include "base/dtype.h"

namespace quern {

// fp32: no tensor cores. tf32: GEMM inputs rounded to TF32. bf16: GEMM inputs and activations are
// BF16; weights, gradients, moments, statistics and the loss stay FP32.
enum class Precision { fp32, tf32, bf16 };

// naive: scores (B, H, T, T) are materialised. flash: tiled, saves O and logsumexp only.
enum class AttentionKind { naive, flash };

// naive: every op composed of small differentiable ops. fused: one kernel an op, also for clipping
// and AdamW.
enum class KernelKind { naive, fused };

// Storage of the residual stream under Precision::bf16; the other precisions keep it in FP32.
enum class ResidualType { bf16, fp32 };

// normal: standard deviation 0.02, the residual projections by 1 / sqrt(2 layers) less. truncated:
// a linear weight sqrt(2 / (in + out)), the embedding 1, both cut at three standard deviations.
enum class InitScheme { normal, truncated };

enum class NormKind { rms, layer };

// What the backward computes again instead of keeping it, from none on more and more. swiglu:
// SwiGLU's outputs. norms: those and the norms' (both with fused kernels; the naive ones keep all).
// blocks: all within segments of blocks. automatic: none, swiglu or norms, which a program decides
// (train/choose_recompute.h); to a model itself it is norms.
enum class Recompute { automatic, none, swiglu, norms, blocks };

struct ModelOptions {
  Precision precision = Precision::fp32;
  AttentionKind attention = AttentionKind::flash;
  KernelKind kernels = KernelKind::fused;
  ResidualType residual = ResidualType::bf16;
  Recompute recompute = Recompute::automatic;
  int segment = 1;  // under Recompute::blocks: blocks recomputed together

  // Of training losses alone (TransformerLM::loss).
  double dropout = 0.0;  // of the embeddings and of each sublayer's output, < 1
  double z_loss = 0.0;   // weight of the mean squared logsumexp of the logits

  // The types that activations and the residual stream have.
  DType activation_type() const { return precision == Precision::bf16 ? DType::bf16 : DType::f32; }
  DType residual_type() const {
    return residual == ResidualType::bf16 ? activation_type() : DType::f32;
  }

  // Whether a fused op's output is computed again by itself; within Recompute::blocks it is kept.
  bool rebuilds_swiglu() const { return recompute == Recompute::swiglu || rebuilds_norms(); }
  bool rebuilds_norms() const {
    return recompute == Recompute::norms || recompute == Recompute::automatic;
  }

  friend bool operator==(const ModelOptions&, const ModelOptions&) = default;
};

}  // namespace quern
