// Random weights for the vectors of a model.
#pragma once

#include "nn/arena.h"
#include "tensor/factory.h"

namespace quern::testing_support {

// Random biases and norms. Their initial 0 and 1 would hide an omission.
inline void randomize_vectors(ParameterArena& arena) {
  for (Parameter* parameter : arena.parameters()) {
    if (parameter->shape().ndim() == 1) {
      copy(parameter->value(), uniform(parameter->shape(), 0.5, 1.5));
    }
  }
  arena.refresh_copies();
}

}  // namespace quern::testing_support
