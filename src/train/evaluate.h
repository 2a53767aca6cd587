// Validation: the mean loss over the non-overlapping windows of a corpus.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "data/dataset.h"
#include "dist/sharded_weights.h"
#include "model/transformer_lm.h"

namespace quern {

struct Evaluation {
  double loss = 0.0;    // nats per token that counts; 0 when none does
  int64_t windows = 0;  // evaluated, of context tokens each
  double seconds = 0.0;
};

// Windows of `context` tokens in batches of `batch`; max_batches 0 means all. With document_end,
// targets that follow this token do not count. `progress` is called before each batch with the
// windows launched so far and all windows. Several ranks divide the batches, with equally many
// forwards each, and return the bits of a single rank. shards: for weights that ranks share out,
// which then arrive as in a step. Throws when there is no complete window.
Evaluation evaluate(const TransformerLM& model, const TokenSource& source, int64_t batch,
                    int64_t context, int64_t max_batches = 0,
                    std::optional<int32_t> document_end = {},
                    const std::function<void(int64_t, int64_t)>& progress = {},
                    Communicator* ranks = nullptr, ShardedWeights* shards = nullptr);

}  // namespace quern
