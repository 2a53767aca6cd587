// Attention of one new token per row over the row's key/value cache: rotates the token's q and k
// (after the norm of their heads, if any), appends k and v to the cache, and computes softmax(q K^T
// / sqrt(D)) V. Bound by reading the cache. Rounds to T where separate kernels would store a T. The
// bits of a row's result do not depend on the other rows or their number.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/sample.h"

namespace quern::kernels {

// T: float or bfloat16. D: a multiple of 8 up to 256.
template <class T>
struct DecodeAttention {
  int64_t B = 0, H = 0, Hk = 0, D = 0, capacity = 0;
  const DecodeRow* rows = nullptr;  // (B): length is the new token's position; inactive: y is 0
  const T* qkv = nullptr;           // (B, (H + 2 Hk) D)
  T* k_cache = nullptr;             // (B, capacity, Hk, D)
  T* v_cache = nullptr;
  const float* cos = nullptr;  // (at least capacity, D / 2), see rope.h
  const float* sin = nullptr;
  const float* q_norm = nullptr;  // (D) weights of the heads' RMSNorm, or both null
  const float* k_norm = nullptr;
  double eps = 0.0;  // the norm's
  T* y = nullptr;    // (B, H D)
};

namespace cpu {
// `early` as in decode_linear.h: kernels still running must not write rows, cos, sin, the norms'
// weights, or the cache before the new position.
template <class T>
void decode_attention(const DecodeAttention<T>& attention, Stream stream, bool early = false);
}  // namespace cpu

namespace cuda {
template <class T>
void decode_attention(const DecodeAttention<T>& attention, Stream stream, bool early = false);
}  // namespace cuda

}  // namespace quern::kernels
