// One token for each of a few rows through the whole model, from embedding to logits, by one
// persistent kernel. Its result has the same bits as the launches of decode_linear.h and
// decode_attention.h. Bound by reading the weights once. A CPU would gain nothing, so there is no
// CPU twin: the tests compare it with the launches.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/sample.h"

namespace quern::kernels {

// A block's weights and its part of the cache. Products' weights are (out, in), norms' FP32. The
// weights of products, the two norms of (C) and the cache are aligned to 16 bytes.
struct DecodeBlock {
  const float* attention_norm = nullptr;  // (C)
  const bfloat16* qkv = nullptr;          // ((H + 2 Hk) D, C)
  const bfloat16* qkv_bias = nullptr;     // ((H + 2 Hk) D), or null
  const float* q_norm = nullptr;          // (D) of the heads' norms, or both null
  const float* k_norm = nullptr;
  bfloat16* k_cache = nullptr;  // (B, capacity, Hk, D)
  bfloat16* v_cache = nullptr;
  const bfloat16* output = nullptr;   // (C, H D)
  const float* mlp_norm = nullptr;    // (C)
  const bfloat16* gate_up = nullptr;  // (2 F, C)
  const bfloat16* down = nullptr;     // (C, F)
};

// Activations and weights are bfloat16. The residual stream is bfloat16 or FP32.
struct DecodeToken {
  int64_t B = 0, layers = 0, C = 0, H = 0, Hk = 0, D = 0, F = 0, V = 0, capacity = 0;
  bool fp32_stream = false;
  double eps = 0.0;                     // of the norms
  const DecodeRow* rows = nullptr;      // (B), see decode_attention.h; at least one is active
  const int32_t* tokens = nullptr;      // (B)
  const bfloat16* embedding = nullptr;  // (V, C)
  const DecodeBlock* blocks = nullptr;  // (layers), on the device
  const float* norm = nullptr;          // (C), the last one
  const bfloat16* head = nullptr;       // (V, C)
  const float* cos = nullptr;           // (at least capacity, D / 2), see rope.h
  const float* sin = nullptr;
  bfloat16* logits = nullptr;  // (B, V)
  void* exchange = nullptr;    // decode_token_exchange() bytes, zeros before the first call
};

namespace cuda {
// Whether decode_token supports the sizes on the part of the device that `stream` may use; reads no
// pointer.
bool decode_token_fits(const DecodeToken& token, Stream stream);

// Whether a block's pointers are aligned as DecodeBlock says.
bool decode_block_fits(const DecodeBlock& block, Stream stream);

// Bytes of `exchange`, through which the thread blocks pass results to each other.
int64_t decode_token_exchange(const DecodeToken& token, Stream stream);

// Throws unless the token fits and embedding, norm, head and exchange are aligned to 16 bytes.
// Occupies all of that part: a kernel that needs room beside this one starts when this one ends.
void decode_token(const DecodeToken& token, Stream stream);
}  // namespace cuda

}  // namespace quern::kernels
