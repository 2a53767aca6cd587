// Weights for loops over vector lanes: the storage format is part of the type, so that a loop has
// no branch.
#pragma once

#include "kernels/weights.h"

namespace quern::kernels::cpu {

struct ExactWeights {
  float* values;
  float get(int64_t i) const { return values[i]; }
  void set(int64_t i, float weight) const { values[i] = weight; }
};

struct SplitWeights {
  bfloat16* copies;
  uint16_t* low;
  float get(int64_t i) const { return joined_weight(copies[i], low[i]); }
  void set(int64_t i, float weight) const {
    copies[i] = rounded_weight(weight);
    low[i] = low_part(weight);
  }
};

// Calls f with the weights from `begin` on, as one of these.
template <class F>
void with_weights(const WeightArrays& weights, int64_t begin, const F& f) {
  if (weights.values == nullptr) {
    f(SplitWeights{weights.copies + begin, weights.low + begin});
  } else {
    f(ExactWeights{weights.values + begin});
  }
}

}  // namespace quern::kernels::cpu
