#pragma once

#include "autograd/ops/attention.h"
#include "autograd/ops/rope.h"

namespace quern {

// rope and flash attention on the q-k-v projection's output where it lies, no element copied:
// qkv (B, T, (H + 2 Hk) D) holds the H query heads, the Hk key heads and the Hk value heads of each
// token -> (B, T, H D). Token t stands at position t.
//
// Rotates the q and k heads IN PLACE, so qkv must be a value that nobody else reads again: the
// fresh output of `linear`, which does not save it. A leaf or a non-contiguous qkv is refused.
Variable rope_attention(const Variable& qkv, int64_t H, int64_t Hk, int64_t D,
                        const RopeTable& table, const AttentionOptions& options = {});

// The same without rotation, for models whose positions lie elsewhere: qkv is read alone.
Variable qkv_attention(const Variable& qkv, int64_t H, int64_t Hk, int64_t D,
                       const AttentionOptions& options = {});

}  // namespace quern
