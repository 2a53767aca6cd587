// Random weights for the vectors of a model.
#pragma once

#include "nn/arena.h"
#include "tensor/factory.h"

namespace quern::testing_support {

// Random biases and norms. Their initial 0 and 1 would hide an omission.
inline void randomize_vectors(ParameterArena& arena) {
  for (const NamedSlice& slice : arena.named_slices()) {
    if (slice.shape.ndim() != 1) continue;
    arena.set_values(slice.begin, uniform(slice.shape, 0.5, 1.5));
  }
  arena.refresh_copies();
}

}  // namespace quern::testing_support
