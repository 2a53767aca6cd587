// What the two predictions of memory (memory_estimate.h) share: sizes, and what ops save.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/memory_estimate.h"

namespace quern::detail {

// Sizes that every count is made of; the widths are in elements a token.
struct MemorySizes {
  int64_t C, F, H, Q, KV, V, T;
  int64_t tokens;      // B T
  int64_t activation;  // bytes of an activation's element
  int64_t residual;    // bytes of an element of the residual stream
  bool flash, fused;
  bool normed;                         // q and k
  bool rebuilt_norms, rebuilt_swiglu;  // their outputs are computed again in the backward
  int64_t layers, segment;
  Recompute recompute;

  int64_t qkv() const { return Q + 2 * KV; }
  bool rotates_in_place() const { return flash && fused && !normed; }
  int64_t qk_heads() const { return H + KV / (Q / H); }
  int64_t scores() const { return H * T; }  // of one token, over all heads
  int64_t segments() const { return (layers + segment - 1) / segment; }
};

// Throws when batch or T is below 1.
MemorySizes memory_sizes(const ModelConfig& config, const ModelOptions& options, int64_t batch,
                         int64_t T);

// Bytes a token.
int64_t final_norm_bytes(const MemorySizes& s);    // saved by the final norm
int64_t norm_bytes(const MemorySizes& s);          // by a norm in a block
int64_t attention_bytes(const MemorySizes& s);     // by attention
int64_t feed_forward_bytes(const MemorySizes& s);  // by the MLP
int64_t block_bytes(const MemorySizes& s);         // by a block: the sum of the above

// Bytes saved by all blocks and the final norm; under Recompute::blocks the segments' inputs.
int64_t saved_bytes(const MemorySizes& s);
// Under Recompute::blocks: most bytes of blocks that are computed again at once, less the inputs
// that are free by then.
int64_t recomputed_bytes(const MemorySizes& s);

// Bytes in use at one moment, beyond the arena.
struct MemoryMoment {
  int64_t activations = 0, other = 0, workspace = 0;
  bool in_head = false;  // in the LM head or the loss

  int64_t total() const { return activations + other + workspace; }
};

// The moments of which one is a pass's peak.
std::vector<MemoryMoment> forward_moments(const MemorySizes& s, const MemoryTarget& target);
std::vector<MemoryMoment> step_moments(const MemorySizes& s, const MemoryTarget& target);

}  // namespace quern::detail
