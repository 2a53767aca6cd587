// A slow reference for greedy generation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "autograd/tape.h"
#include "model/transformer_lm.h"
#include "tensor/factory.h"

namespace quern::testing_support {

// Returns `count` greedy tokens after `tokens`; computes the whole sequence for each.
inline std::vector<int32_t> without_cache(const TransformerLM& model, std::vector<int32_t> tokens,
                                          int64_t count) {
  const NoGrad no_grad;
  std::vector<int32_t> made;
  for (int64_t i = 0; i < count; ++i) {
    const auto T = static_cast<int64_t>(tokens.size());
    const std::vector<float> logits = model.logits(from_vector(tokens, {1, T}))
                                          .value()
                                          .slice(1, T - 1, T)
                                          .to(DType::f32)
                                          .to_vector<float>();
    made.push_back(
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    tokens.push_back(made.back());
  }
  return made;
}

}  // namespace quern::testing_support
