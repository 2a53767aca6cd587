// softmax(scale q k^T) v for every head. q (B, Tq, H, D), k and v (B, Tk, Hk, D), one dtype;
// Hk divides H, and query head h reads kv head h / (H / Hk). Result (B, Tq, H, D). Causal: query i
// sees key j when j <= i + Tk - Tq; a query that sees no key gives 0.
#pragma once

#include "autograd/ops/rope.h"
#include "autograd/variable.h"

namespace quern {

struct AttentionOptions {
  bool causal = true;
  double scale = 0.0;     // of the scores, positive; 0: 1 / sqrt(D)
  bool portable = false;  // only kernels that run on every GPU
};

// Tiled, with an online softmax (Dao, 2023): the scores are never stored. Any strides with D
// contiguous; D a multiple of 8, at most 256.
Variable flash_attention(const Variable& q, const Variable& k, const Variable& v,
                         const AttentionOptions& options = {});

// The same composed of small ops, with scores (B, H, Tq, Tk) materialised. Any D, any strides.
Variable naive_attention(const Variable& q, const Variable& k, const Variable& v,
                         const AttentionOptions& options = {});

// rope and flash attention on the output of the q-k-v projection, without a copy.
// qkv (B, T, (H + 2 Hk) D) holds the H query heads, the Hk key heads and the Hk value heads of each
// token; the result is (B, T, H D). Token t has position t.
//
// Rotates the q and k heads IN PLACE, so nothing else may read qkv afterwards. It must be the fresh
// output of `linear`, which does not save it. Throws for a leaf or a non-contiguous qkv.
Variable rope_attention(const Variable& qkv, int64_t H, int64_t Hk, int64_t D,
                        const RopeTable& table, const AttentionOptions& options = {});

// The same without rotation, for models with other positions. qkv is only read.
Variable qkv_attention(const Variable& qkv, int64_t H, int64_t Hk, int64_t D,
                       const AttentionOptions& options = {});

}  // namespace quern
