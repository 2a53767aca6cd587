// Shared by the attention ops: the kernels' view of their arguments, and the flash backward.
#pragma once

#include "autograd/ops/attention.h"
#include "autograd/ops/rope.h"
#include "kernels/attention.h"

namespace quern::detail {

// Extents, causality and scale; strides still unset. Throws when q, k and v do not fit each other.
kernels::AttentionShape attention_shape(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const AttentionOptions& options);

// The strides of x (B, T, H, D) along B, T and H.
void set_strides(int64_t (&strides)[3], const Tensor& x);

// Writes dq, dk and dv (any strides with D contiguous). `s` is the forward's. With a table, q and k
// were rotated by it, and dq and dk are rotated back.
void attention_gradients(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& d_o,
                         const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                         const Tensor& v, kernels::AttentionShape s,
                         const RopeTable* rotary = nullptr);

}  // namespace quern::detail
