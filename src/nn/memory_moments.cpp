// The moments at which a forward or a step may hold most memory: what is in use then, from the
// order in which the ops run and let go of their inputs.
#include <algorithm>

#include "nn/memory_sizes.h"

namespace quern::detail {

namespace {

constexpr int64_t kFloat = 4;  // bytes of FP32

// Scratch memory of a product (rows, depth) x (depth, columns) of activations: both operands as
// three BF16 planes, where FP32 products are split.
int64_t product_scratch(const MemorySizes& s, const MemoryTarget& target, int64_t rows,
                        int64_t depth, int64_t columns) {
  const bool split = target.split_products && s.activation == kFloat;
  return split ? 3 * 2 * (rows * depth + depth * columns) : 0;
}

// The products of a linear's two gradients.
int64_t linear_backward_scratch(const MemorySizes& s, const MemoryTarget& target, int64_t rows,
                                int64_t in, int64_t out) {
  return std::max(product_scratch(s, target, rows, out, in),
                  product_scratch(s, target, out, rows, in));
}

// Of flash attention's backward: dQ in FP32, and a number a row and head.
int64_t flash_scratch(const MemorySizes& s) {
  return s.flash ? s.tokens * (s.Q + s.H) * kFloat : 0;
}

// Of naive attention's products of the scores with q, k, v or dO. Narrow heads give a narrow output
// for a large operand: such products are not split (kernels/cuda/gemm_split.cpp, choose_split).
int64_t scores_scratch(const MemorySizes& s, const MemoryTarget& target) {
  constexpr int64_t kLeastHeadDim = 96;
  const bool split = target.split_products && s.activation == kFloat && s.Q / s.H >= kLeastHeadDim;
  return split ? 3 * 2 * s.tokens * (s.scores() + s.Q) : 0;
}

int64_t head_rows(const MemorySizes& s) {
  return s.fused ? std::min(s.tokens, head_chunk_rows(s.tokens, s.V, s.C, s.activation)) : s.tokens;
}

// The rotary embedding of naive kernels, one of q and k at a time: its halves swapped, the two
// products, and their sum, in FP32.
int64_t naive_rope_bytes(const MemorySizes& s) {
  const int64_t wide = s.activation == kFloat ? 0 : s.Q * kFloat;
  return wide + 4 * s.Q * kFloat;
}

// What a forward without a tape holds a token all through its last block: the model's first
// residual stream, or under recomputation the segment's inputs, and the block's inputs.
int64_t block_inputs(const MemorySizes& s) {
  const int64_t stream = s.C * s.residual, both = stream + s.C * s.activation;
  const int64_t in_segment = std::min(s.segment, s.layers) - 1;  // blocks before it in its segment
  if (s.recompute == Recompute::blocks && s.segments() > 1)
    return both + (in_segment > 0 ? both : 0);
  return stream + (s.layers > 1 ? both : 0);
}

// Such a forward's last block, and what it holds beside its inputs in each part.
void add_block_moments(std::vector<MemoryMoment>& moments, const MemorySizes& s,
                       const MemoryTarget& target) {
  const int64_t a = s.activation, C = s.C, N = s.tokens;
  int64_t held = block_inputs(s) + C * s.residual + C * a;  // and the stream and its norm
  const auto add = [&](int64_t bytes, int64_t workspace) {
    moments.push_back({0, N * bytes, workspace, false});
  };
  if (!s.fused) {  // the norm after attention: a product with the row's factor, one with w
    add(held + C * s.residual + 2 * C * kFloat + (a == kFloat ? 0 : C * kFloat), 0);
  }
  if (s.layers == 1) held -= C * s.residual;  // nothing is added before attention
  add(held + s.qkv() * a, product_scratch(s, target, N, C, s.qkv()));
  const int64_t rotated = s.rotates_in_place() ? 0 : s.Q + s.KV;
  const int64_t heads = held + (s.qkv() + rotated) * a;
  if (!s.fused) add(heads - (s.normed ? 0 : s.Q * a) + naive_rope_bytes(s), 0);
  if (s.flash) {
    add(heads + (s.Q + C) * a + s.H * kFloat, product_scratch(s, target, N, s.Q, C));
  } else {  // scores beside masked ones or their softmax; then softmax alone with v and the output
    add(heads + (s.Q + 2 * s.scores()) * a, 0);
    add(heads + (2 * s.Q + s.KV + s.scores()) * a, scores_scratch(s, target));
  }
  if (s.layers == 1) held += C * s.residual;
  const int64_t wide = (s.fused ? 3 : 4) * s.F * a;
  add(held + wide, 0);
  add(held + 2 * s.F * a, product_scratch(s, target, N, C, 2 * s.F));
  add(held + 3 * s.F * a + C * a, product_scratch(s, target, N, s.F, C));
}

// The last block's backward, last op first. `saved`: by the forward; `beside`: bytes held besides,
// the recomputed blocks' included. The later ops' share of the block is free by then.
void add_backward_moments(std::vector<MemoryMoment>& moments, const MemorySizes& s,
                          const MemoryTarget& target, int64_t saved, int64_t beside) {
  const int64_t a = s.activation, C = s.C, F = s.F, N = s.tokens, dstream = C * s.residual;
  int64_t freed = 0;  // of the block, a token
  const auto add = [&](int64_t bytes, int64_t workspace) {
    MemoryMoment moment{saved - N * final_norm_bytes(s), beside + N * (dstream + bytes), workspace};
    (s.recompute == Recompute::blocks ? moment.other : moment.activations) -= N * freed;
    moments.push_back(moment);
  };
  // The gradients of gate, up and their product. A kept product's is made when the weight has its
  // gradient and the product is free; Hopper in BF16 never stores it, and needs F less.
  const int64_t rebuilt_norm = s.rebuilt_norms ? C * a : 0;
  if (s.rebuilt_swiglu) {
    add(3 * F * a, linear_backward_scratch(s, target, N, F, C));
  } else if (s.fused) {
    add(0, product_scratch(s, target, C, N, F));
    add(2 * F * a, product_scratch(s, target, N, C, F));
  } else {
    add(F * a, linear_backward_scratch(s, target, N, F, C));
    add(2 * F * a, 0);
  }
  freed += feed_forward_bytes(s);
  add(2 * F * a + C * a + rebuilt_norm, linear_backward_scratch(s, target, N, C, 2 * F));
  freed += norm_bytes(s);
  add(s.Q * a, linear_backward_scratch(s, target, N, s.Q, C));
  if (s.flash) {
    add((s.qkv() + s.Q) * a, flash_scratch(s));
  } else {  // the product with v; the softmax; the product of q and k
    add((s.KV + s.scores() + s.Q) * a, scores_scratch(s, target));
    add((s.KV + 2 * s.scores() + s.Q) * a, 0);
    freed += s.scores() * a;
    add((s.qkv() + s.scores()) * a, scores_scratch(s, target));
    freed -= s.scores() * a;
    add((s.qkv() + s.scores() + s.Q) * a, 0);
  }
  freed += attention_bytes(s);
  add(s.qkv() * a + C * a + rebuilt_norm, linear_backward_scratch(s, target, N, C, s.qkv()));
}

// Fused: one chunk of logits, overwritten by its gradient, and the gradient of the head's input.
// Naive: log_softmax and the gradients of both, all in FP32; then the last one alone.
void add_head_moments(std::vector<MemoryMoment>& moments, const MemorySizes& s,
                      const MemoryTarget& target, int64_t saved) {
  const int64_t dx = s.tokens * s.C * s.activation;
  const int64_t rows = head_rows(s);
  const int64_t backward = linear_backward_scratch(s, target, rows, s.C, s.V);
  if (s.fused) {
    const int64_t scratch = std::max(product_scratch(s, target, rows, s.C, s.V), backward);
    // dx outlives the head; its input, as large and counted as saved, does not.
    moments.push_back({saved, rows * s.V * s.activation + dx, scratch, true});
    return;
  }
  const int64_t log_p = s.tokens * s.V * kFloat;
  moments.push_back({saved + log_p, 2 * log_p + dx, 0, true});
  moments.push_back({saved, s.tokens * s.V * s.activation + dx, backward, true});
  // The final norm: the gradients of a product and of its factors, less the output.
  const int64_t norm = 3 * s.C * kFloat - s.C * s.activation;
  moments.push_back({saved, s.tokens * norm, 0, false});
}

}  // namespace

std::vector<MemoryMoment> forward_moments(const MemorySizes& s, const MemoryTarget& target) {
  std::vector<MemoryMoment> moments;
  add_block_moments(moments, s, target);
  const int64_t h = s.tokens * s.C * s.activation, rows = head_rows(s);
  const int64_t logits = rows * s.V * s.activation;
  const int64_t scratch = product_scratch(s, target, rows, s.C, s.V);
  moments.push_back({0, h + logits, scratch, true});
  if (!s.fused) {  // the logits, as FP32 where they are not, and their log_softmax
    const int64_t wide = s.tokens * s.V * kFloat;
    moments.push_back({0, h + logits + (s.activation == kFloat ? wide : 2 * wide), 0, true});
  }
  return moments;
}

std::vector<MemoryMoment> step_moments(const MemorySizes& s, const MemoryTarget& target) {
  std::vector<MemoryMoment> moments;
  const int64_t saved = saved_bytes(s);
  add_head_moments(moments, s, target, saved);
  if (s.recompute != Recompute::blocks) {
    add_backward_moments(moments, s, target, saved, 0);
    return moments;
  }
  // Beside the blocks: the segment's output, and its gradient where the branch has its own type.
  const int64_t branch = s.tokens * s.C * s.activation;
  const int64_t outputs = (s.residual == s.activation ? 1 : 2) * branch;
  add_backward_moments(moments, s, target, saved, recomputed_bytes(s) + outputs);
  return moments;
}

}  // namespace quern::detail
