// Validation: the mean loss over the non-overlapping windows of a corpus.
#pragma once

#include <cstdint>

#include "data/dataset.h"
#include "nn/transformer_lm.h"

namespace quern {

struct Evaluation {
  double loss = 0.0;    // nats a token
  int64_t windows = 0;  // scored, of context tokens each
  double seconds = 0.0;
};

// Windows of `context` tokens in batches of `batch`; max_batches 0 means all. Throws when there is
// no whole window.
Evaluation evaluate(const TransformerLM& model, const TokenSource& source, int64_t batch,
                    int64_t context, int64_t max_batches = 0);

}  // namespace quern
