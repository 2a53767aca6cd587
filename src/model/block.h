// The interface between TransformerLM and its blocks. docs/adding_a_block.md describes how to add a
// kind of block.
#pragma once

#include <memory>
#include <optional>

#include "autograd/host_stash.h"
#include "autograd/ops/rope.h"
#include "model/decode_weights.h"
#include "model/kv_cache.h"
#include "nn/dropout.h"
#include "nn/norm.h"

namespace quern {

// The residual stream between blocks. `branch`: the last sublayer's output, not yet added to the
// residual; the next norm adds it in its own pass. Undefined before the first block.
struct Residual {
  Variable x;       // (B, T, C) in the stream's type
  Variable branch;  // (B, T, C) in the activations' type
};

// The start of a block: {the stream with the branch added, its norm in type `activation`}.
inline std::pair<Variable, Variable> add_and_norm(const Norm& norm, const Residual& in,
                                                  DType activation) {
  if (in.branch.defined()) return norm.add_and_norm(in.x, in.branch);
  return {in.x, norm(in.x, activation)};
}

// The inputs that all blocks of one forward share.
struct SharedInputs {
  const RopeTable* rope = nullptr;  // rotates q and k; null: no rotation
  Dropout drop = {};  // for the output of each sublayer; `place` is the sublayer's, 0 or 1
  std::shared_ptr<HostStash> stash = {};  // for large tensors of the backward; null: none
};

class Block : public Module {
 public:
  virtual Residual forward(const Residual& in, const SharedInputs& shared) const = 0;

  // The same for tokens at positions cache_length ...; appends their keys and values to the cache.
  // No gradient.
  virtual Residual decode(const Residual& in, const SharedInputs& shared, KvCache::Layer& cache,
                          int64_t cache_length) const = 0;
  virtual KvCache::Layer make_cache(int64_t batch, int64_t capacity) const = 0;

  // FLOPs per token of the forward beyond 2 for each parameter of the block: attention over
  // `context` tokens.
  virtual double mixing_flops(int64_t context) const = 0;

  // The weights for the fused decoder; empty: decoding is composed of ops.
  virtual std::optional<BlockWeights> decode_weights() const { return {}; }
};

}  // namespace quern
