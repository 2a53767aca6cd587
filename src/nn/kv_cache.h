// Keys and values of the tokens seen so far, one pair of buffers a block.
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace quern {

struct KvCache {
  struct Layer {
    Tensor k, v;  // (B, capacity, Hk, D)
  };
  std::vector<Layer> layers;
  int64_t length = 0;  // tokens held
  int64_t capacity = 0;
};

}  // namespace quern
