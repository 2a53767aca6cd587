#include "nn/memory_estimate.h"

#include <algorithm>

#include "base/error.h"
#include "nn/memory_sizes.h"

namespace quern {

namespace {

constexpr int64_t kFloat = 4;  // bytes of FP32

}  // namespace

namespace detail {

MemorySizes memory_sizes(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                         int64_t T) {
  QUERN_CHECK(batch >= 1 && T >= 1, "predict_memory: batch is ", batch, " and T is ", T,
              ", expected at least 1");
  const bool bf16 = options.precision == Precision::bf16;
  MemorySizes s{};
  s.C = config.d_model;
  s.F = config.d_ff;
  s.H = config.heads;
  s.Q = config.q_width();
  s.KV = config.kv_width();
  s.V = config.vocab_size;
  s.T = T;
  s.tokens = batch * T;
  s.activation = bf16 ? 2 : kFloat;
  s.residual = bf16 && options.residual == ResidualType::bf16 ? 2 : kFloat;
  s.flash = options.attention == AttentionKind::flash;
  s.fused = options.kernels == KernelKind::fused;
  s.normed = config.qk_norm;
  s.rebuilt_norms = s.fused && options.rebuilds_norms();
  s.rebuilt_swiglu = s.fused && options.rebuilds_swiglu();
  s.layers = config.layers;
  s.segment = std::min<int64_t>(options.segment, config.layers);
  s.recompute = options.recompute;
  return s;
}

// Fused: its input (the residual stream), one float a row, and its output, which the head reads.
// Naive: the input and the normalised rows in FP32, the output, and two floats a row.
int64_t final_norm_bytes(const MemorySizes& s) {
  if (s.fused) return s.C * s.residual + kFloat + s.C * s.activation;
  return 2 * s.C * kFloat + s.C * s.activation + 2 * kFloat;
}

// In a block the output is kept by the next linear, or rebuilt.
int64_t norm_bytes(const MemorySizes& s) {
  return final_norm_bytes(s) - (s.rebuilt_norms ? s.C * s.activation : 0);
}

// The norms of q and k: their input packed, which is FP32 with naive kernels, and one float a row.
// Naive: also the normalised rows in FP32, and another float a row.
int64_t head_norm_bytes(const MemorySizes& s) {
  if (!s.normed) return 0;
  const int64_t width = s.Q + s.KV;
  if (s.fused) return width * s.activation + s.qk_heads() * kFloat;
  return 2 * (width + s.qk_heads()) * kFloat;
}

// q, k and v, the output (which the output projection keeps), and logsumexp or the probabilities.
// Naive attention keeps q, k and v packed by heads. Flash keeps all of qkv for v, and q and k again
// where they were not rotated in place.
int64_t attention_bytes(const MemorySizes& s) {
  const int64_t rotated = s.flash && !s.rotates_in_place() ? s.Q + s.KV : 0;
  const int64_t weights = s.flash ? s.H * kFloat : s.scores() * s.activation;
  return (s.qkv() + rotated + s.Q) * s.activation + weights + head_norm_bytes(s);
}

// Gate and up, and their product, which the down projection keeps or rebuilds. Naive: also
// silu(gate).
int64_t feed_forward_bytes(const MemorySizes& s) {
  return (s.rebuilt_swiglu ? 2 : s.fused ? 3 : 4) * s.F * s.activation;
}

// What a block saves a token.
int64_t block_bytes(const MemorySizes& s) {
  return 2 * norm_bytes(s) + attention_bytes(s) + feed_forward_bytes(s);
}

int64_t saved_bytes(const MemorySizes& s) {
  const int64_t final_norm = s.tokens * final_norm_bytes(s);
  if (s.recompute != Recompute::blocks) return s.layers * s.tokens * block_bytes(s) + final_norm;
  // Each segment saves its inputs, the stream and (but for the first) the branch not yet added.
  const int64_t stream = s.tokens * s.C * s.residual, branch = s.tokens * s.C * s.activation;
  return s.segments() * stream + (s.segments() - 1) * branch + final_norm;
}

// One segment at a time is recomputed in the backward. A last one that is shorter is done, and its
// inputs are free, when the first whole one is recomputed.
int64_t recomputed_bytes(const MemorySizes& s) {
  const int64_t block = s.tokens * block_bytes(s);
  const int64_t last = s.layers - (s.segments() - 1) * s.segment;
  if (last == s.segment) return last * block;
  const int64_t inputs = s.tokens * s.C * (s.residual + s.activation);
  return std::max(last * block, s.segment * block - inputs);
}

}  // namespace detail

MemoryEstimate predict_memory(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                              int64_t T) {
  const detail::MemorySizes s = detail::memory_sizes(config, options, batch, T);
  const int64_t count = parameter_count(config);
  MemoryEstimate m;
  m.parameters = m.gradients = count * kFloat;
  m.moments = 2 * count * kFloat;
  m.copies = options.precision == Precision::bf16 ? count * 2 : 0;
  m.activations = detail::saved_bytes(s);
  for (const detail::MemoryMoment& moment : detail::step_moments(s, MemoryTarget{})) {
    int64_t& most = moment.in_head ? m.logits : m.transient;
    most = std::max(most, moment.total() - m.activations);
  }
  return m;
}

}  // namespace quern
