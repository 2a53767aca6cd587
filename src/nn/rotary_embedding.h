// The cosines and sines of RoPE, shared by all blocks of a model.
#pragma once

#include "autograd/ops/rope.h"

namespace quern {

class RotaryEmbedding {
 public:
  // Positions 0 .. positions-1 of heads of width head_dim; tables in FP32 on the current device.
  RotaryEmbedding(int64_t positions, int64_t head_dim, double theta,
                  const kernels::RopeScaling& scaling = {})
      : table_(make_rope_table(positions, head_dim, theta, DType::f32, scaling)) {}

  const RopeTable& table() const { return table_; }
  int64_t positions() const { return table_.cos.dim(0); }

 private:
  RopeTable table_;  // cos, sin: (positions, D/2)
};

}  // namespace quern
