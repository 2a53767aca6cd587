#pragma once

#include "autograd/ops/attention.h"
#include "autograd/ops/rope.h"

namespace quern {

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
