// Weights that a fresh model does not have.
#pragma once

#include "nn/arena.h"
#include "tensor/factory.h"

namespace quern::testing_support {

// Random biases and norms: they start at 0 and 1, which would hide that they are left out.
inline void randomize_vectors(ParameterArena& arena) {
  for (Parameter* parameter : arena.parameters()) {
    if (parameter->shape().ndim() == 1) {
      copy(parameter->value(), uniform(parameter->shape(), 0.5, 1.5));
    }
  }
  arena.refresh_copies();
}

}  // namespace quern::testing_support
