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

  // Only row b, which holds `held` tokens: views of the same memory.
  KvCache row(int64_t b, int64_t held) const {
    KvCache one{{}, held, capacity};
    for (const Layer& layer : layers) {
      one.layers.push_back({layer.k.slice(0, b, b + 1), layer.v.slice(0, b, b + 1)});
    }
    return one;
  }
};

}  // namespace quern
