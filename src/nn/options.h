// How a model computes; its dimensions are in model_config.h. Every combination runs on every
// device, but FP8 only on CPUs and on GPUs of compute capability 9.0. Except for dropout and the
// z-loss, these options change trained weights only by rounding.
#pragma once

#include "base/dtype.h"
#include "tensor/op_options.h"

namespace quern {

// naive: scores (B, H, T, T) are materialised. flash: tiled, saves O and logsumexp only.
enum class AttentionKind { naive, flash };

// naive: every op composed of small differentiable ops. fused: one kernel an op, also for clipping
// and AdamW.
enum class KernelKind { naive, fused };

// Storage of the residual stream where activations are BF16; the other precisions keep it in FP32.
enum class ResidualType { bf16, fp32 };

// normal: standard deviation 0.02, for residual projections over sqrt(2 layers). truncated: sqrt(2
// / (in + out)) for a linear weight, 1 for the embedding, both cut at three standard deviations.
enum class InitScheme { normal, truncated };

enum class NormKind { rms, layer };

// Values that the backward computes again instead of keeping them; each choice includes those
// before it. swiglu: SwiGLU's outputs. norms: also the norms' outputs (both with fused kernels;
// naive kernels keep all). blocks: everything inside segments of blocks. automatic: as
// train/choose_recompute.h decides; a model treats it as norms.
enum class Recompute { automatic, none, swiglu, norms, blocks };

// State that training on a GPU keeps in host memory; the update reads and writes it over the bus.
// optimizer: the moments and, where ops read BF16 weights, the FP32 weights or their unread parts.
enum class Offload { none, moments, optimizer };

struct ModelOptions : OpOptions {
  AttentionKind attention = AttentionKind::flash;
  KernelKind kernels = KernelKind::fused;
  ResidualType residual = ResidualType::bf16;
  Recompute recompute = Recompute::automatic;
  int segment = 1;  // under Recompute::blocks: blocks recomputed together
  Offload offload = Offload::none;
  // To the host, between forward and backward: under Recompute::blocks the inputs of segments,
  // otherwise the input of each MLP's activation function.
  bool offload_activations = false;

  // Only for training losses (TransformerLM::loss).
  double dropout = 0.0;  // of the embeddings and of each sublayer's output, < 1
  double z_loss = 0.0;   // weight of the mean squared logsumexp of the logits

  // Types of the activations and of the residual stream.
  DType activation_type() const {
    return has_bf16_activations(precision) ? DType::bf16 : DType::f32;
  }
  DType residual_type() const {
    return residual == ResidualType::bf16 ? activation_type() : DType::f32;
  }

  // Whether the output of one fused op is computed again. Recompute::blocks keeps it.
  bool rebuilds_swiglu() const { return recompute == Recompute::swiglu || rebuilds_norms(); }
  bool rebuilds_norms() const {
    return recompute == Recompute::norms || recompute == Recompute::automatic;
  }

  friend bool operator==(const ModelOptions&, const ModelOptions&) = default;
};

}  // namespace quern
