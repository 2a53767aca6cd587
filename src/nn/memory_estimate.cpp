#include "nn/memory_estimate.h"

#include <algorithm>

#include "base/error.h"

namespace quern {

namespace {

constexpr int64_t kFloat = 4;  // bytes of FP32

// Sizes that every count below is made of; the widths are in elements a token.
struct Sizes {
  int64_t C, F, H, Q, KV, V, T;
  int64_t tokens;      // B T
  int64_t activation;  // bytes of an activation's element
  int64_t residual;    // bytes of an element of the residual stream
  bool flash, fused;
  bool rebuilt;  // norm and SwiGLU outputs are computed again in the backward
};

Sizes sizes_of(const ModelConfig& config, const ModelOptions& options, int64_t batch, int64_t T) {
  const bool bf16 = options.precision == Precision::bf16;
  Sizes s{};
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
  s.rebuilt = s.fused && options.recompute == Recompute::norms;
  return s;
}

// Fused: its input (the residual stream), one float a row, and its output, which the head reads.
// Naive: the input and the normalised rows in FP32, the output, and two floats a row.
int64_t final_norm_bytes(const Sizes& s) {
  if (s.fused) return s.C * s.residual + kFloat + s.C * s.activation;
  return 2 * s.C * kFloat + s.C * s.activation + 2 * kFloat;
}

// In a block the output is kept by the next linear, or rebuilt.
int64_t norm_bytes(const Sizes& s) {
  return final_norm_bytes(s) - (s.rebuilt ? s.C * s.activation : 0);
}

// q, k and v, the output (which the output projection keeps), and logsumexp or the probabilities.
// Naive attention keeps q, k and v packed by heads. Flash keeps all of qkv for v, and q and k again
// where they were not rotated in place.
int64_t attention_bytes(const Sizes& s) {
  const int64_t qkv = s.Q + 2 * s.KV, rotated = s.flash && !s.fused ? s.Q + s.KV : 0;
  const int64_t weights = s.flash ? s.H * kFloat : s.H * s.T * s.activation;
  return (qkv + rotated + s.Q) * s.activation + weights;
}

// Gate and up, and their product, which the down projection keeps or rebuilds. Naive: also
// silu(gate).
int64_t feed_forward_bytes(const Sizes& s) {
  return (s.rebuilt ? 2 : s.fused ? 3 : 4) * s.F * s.activation;
}

// What a block saves a token.
int64_t block_bytes(const Sizes& s) {
  return 2 * norm_bytes(s) + attention_bytes(s) + feed_forward_bytes(s);
}

// The most that the last block's backward holds a token beyond what the forward saved, less what it
// has freed by then: around SwiGLU the gradients of gate, up and their product, less a kept
// product; around attention those of q, k, v and the output, less all that the feed-forward had
// saved. Naive attention: at the softmax those of v, the scores and the probabilities, or after it
// those of q, k, v and the scores.
int64_t block_transient_bytes(const Sizes& s) {
  const int64_t qkv = s.Q + 2 * s.KV;
  const int64_t scores = s.H * s.T;
  const int64_t inner = s.flash ? qkv : std::max(s.KV + 2 * scores, qkv + scores);
  const int64_t feed_forward = (s.rebuilt ? 3 : 2) * s.F * s.activation;
  const int64_t attention = (inner + s.Q) * s.activation - feed_forward_bytes(s) - norm_bytes(s);
  return s.C * s.residual + std::max(attention, feed_forward);
}

// Fused: one chunk of logits, overwritten by its gradient, and the gradient of the head's input.
// Naive: log_softmax and the gradients of both, all in FP32.
int64_t logit_bytes(const Sizes& s) {
  const int64_t input_gradient = s.tokens * s.C * s.activation;
  if (s.fused) {
    const int64_t rows = std::min(s.tokens, head_chunk_rows(s.tokens, s.V, s.activation));
    return rows * s.V * s.activation + input_gradient;
  }
  return 3 * s.tokens * s.V * kFloat + input_gradient;
}

// The naive norm's backward: the gradients of a product and of its factors, less the output.
int64_t final_norm_transient_bytes(const Sizes& s) {
  return s.fused ? 0 : 3 * s.C * kFloat - s.C * s.activation;
}

}  // namespace

MemoryEstimate predict_memory(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                              int64_t T) {
  QUERN_CHECK(batch >= 1 && T >= 1, "predict_memory: batch is ", batch, " and T is ", T,
              ", expected at least 1");
  const Sizes s = sizes_of(config, options, batch, T);
  const int64_t count = parameter_count(config);
  MemoryEstimate m;
  m.parameters = m.gradients = count * kFloat;
  m.moments = 2 * count * kFloat;
  m.copies = options.precision == Precision::bf16 ? count * 2 : 0;
  m.logits = logit_bytes(s);

  const int64_t final_norm = s.tokens * final_norm_bytes(s);
  const int64_t block = s.tokens * block_bytes(s);
  // By the last block's backward the final norm's share is free.
  m.transient = s.tokens * std::max({int64_t{0}, final_norm_transient_bytes(s),
                                     block_transient_bytes(s) - final_norm_bytes(s)});
  if (options.recompute != Recompute::blocks) {
    m.activations = config.layers * block + final_norm;
  } else {
    // Each segment saves its inputs, the stream and (but for the first) the branch not yet added;
    // one segment at a time is recomputed in the backward. A last one that is shorter is done, and
    // its inputs are free, when the first whole one is recomputed.
    const int64_t k = std::min<int64_t>(options.segment, config.layers);
    const int64_t segments = (config.layers + k - 1) / k;
    const int64_t last = config.layers - (segments - 1) * k;
    const int64_t stream = s.tokens * s.C * s.residual, branch = s.tokens * s.C * s.activation;
    m.activations = segments * stream + (segments - 1) * branch + final_norm;
    const int64_t recomputed =
        last == k ? k * block : std::max(last * block, k * block - stream - branch);
    // Beside the blocks: the segment's output, and its gradient where the branch has its own type.
    const int64_t outputs = (s.residual == s.activation ? 1 : 2) * branch;
    const int64_t backward = s.tokens * (block_transient_bytes(s) - final_norm_bytes(s)) + outputs;
    m.transient = std::max(m.transient, recomputed + backward);
  }
  return m;
}

}  // namespace quern
