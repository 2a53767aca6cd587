// The model's weights for the fused decoder (decode_step.h): views, valid as long as the model.
#pragma once

#include <vector>

#include "autograd/ops/rope.h"
#include "nn/parameter.h"

namespace quern {

// A block of x + attention(norm(x)), then x + swiglu(norm(x)), with RMSNorm and RoPE.
struct BlockWeights {
  const Parameter* attention_norm = nullptr;  // (C)
  const Parameter* qkv = nullptr;             // ((H + 2 Hk) D, C)
  const Parameter* qkv_bias = nullptr;        // ((H + 2 Hk) D), or null
  const Parameter* q_norm = nullptr;          // (D) of the heads' norms, or both null
  const Parameter* k_norm = nullptr;
  const Parameter* output = nullptr;    // (C, H D)
  const Parameter* mlp_norm = nullptr;  // (C)
  const Parameter* gate_up = nullptr;   // (2 F, C)
  const Parameter* down = nullptr;      // (C, F)
};

struct DecodeWeights {
  const Parameter* embedding = nullptr;  // (V, C)
  std::vector<BlockWeights> blocks;
  const Parameter* norm = nullptr;  // (C), the last one
  const Parameter* head = nullptr;  // (V, C)
  const RopeTable* rope = nullptr;
};

}  // namespace quern
