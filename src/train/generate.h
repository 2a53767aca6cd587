// Text from a model, token by token, with a key/value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "nn/transformer_lm.h"
#include "train/config.h"

namespace quern {

// Called with each new token; false ends the generation.
using TokenCallback = std::function<bool(int32_t token)>;

// Up to options.tokens tokens after the prompt (at least one token, longer ones keep their end).
// Sampling is seeded: the same model, prompt and options give the same tokens. When the context is
// full, `stop` ends and `slide` goes on with the later half of it. Throws when the prompt is empty
// or has a token past the vocabulary.
std::vector<int32_t> generate(const TransformerLM& model, const std::vector<int32_t>& prompt,
                              const SampleSection& options, const TokenCallback& on_token = {});

// One token from logits: greedy at temperature 0, else from the top_k likeliest (0: all) whose
// probability sums to top_p, by a uniform number u in [0, 1).
int32_t sample_token(std::vector<float> logits, const SampleSection& options, double u);

}  // namespace quern
