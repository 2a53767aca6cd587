// What the harnesses train on: tokens that nothing can be learnt from, with nothing to load.
#pragma once

#include "config/config.h"
#include "tensor/factory.h"

namespace quern {

struct RandomBatch {
  Tensor tokens, targets;  // (B, T) i32
};

// `rows` sequences of the configuration's context and vocabulary, from the Context's generator.
inline RandomBatch random_batch(const Config& config, int64_t rows) {
  const Shape shape{rows, config.model.context};
  const auto V = static_cast<int32_t>(config.model.vocab_size);
  const Tensor tokens = random_integers(shape, V);  // drawn before the targets
  return {tokens, random_integers(shape, V)};
}

}  // namespace quern
