// A Transformer block as TransformerLM sees it. docs/adding_a_block.md says how to add a kind.
#pragma once

#include <optional>

#include "autograd/ops/rope.h"
#include "model/decode_weights.h"
#include "model/kv_cache.h"
#include "nn/dropout.h"
#include "nn/norm.h"

namespace quern {

// The residual stream between blocks. `branch`: the last sublayer's output, not yet added: the next
// norm adds it in the same pass. Undefined before the first block.
struct Residual {
  Variable x;       // (B, T, C) in the stream's type
  Variable branch;  // (B, T, C) in the activations' type
};

// How a block begins: {the stream with the branch added, its norm in `activation`}.
inline std::pair<Variable, Variable> add_and_norm(const Norm& norm, const Residual& in,
                                                  DType activation) {
  if (in.branch.defined()) return norm.add_and_norm(in.x, in.branch);
  return {in.x, norm(in.x, activation)};
}

// The inputs that all blocks of one forward share.
struct SharedInputs {
  const RopeTable* rope = nullptr;  // attention rotates q and k by it; null: it does not
  Dropout drop = {};  // for the output of each sublayer; `place` is the sublayer's, 0 or 1
};

class Block : public Module {
 public:
  virtual Residual forward(const Residual& in, const SharedInputs& shared) const = 0;

  // The same for tokens at positions cache_length ..., whose keys and values are added to the
  // cache. No gradient.
  virtual Residual decode(const Residual& in, const SharedInputs& shared, KvCache::Layer& cache,
                          int64_t cache_length) const = 0;
  virtual KvCache::Layer make_cache(int64_t batch, int64_t capacity) const = 0;

  // FLOPs of a token's forward beside the 2 for each of the block's parameters: those of attention
  // over `context` tokens.
  virtual double mixing_flops(int64_t context) const = 0;

  // What the fused decoder reads; nothing: decoding is composed of ops.
  virtual std::optional<BlockWeights> decode_weights() const { return {}; }
};

}  // namespace quern
