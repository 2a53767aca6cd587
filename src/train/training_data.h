// The data of a training, what is known about its tokens, and its tokenizer.
#pragma once

#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "run/check_data.h"
#include "run/run_tokenizer.h"

namespace quern {

struct TrainingData {
  Dataset tokens;
  TokenFacts facts;
  RunTokenizer tokenizer;
  std::string train_fingerprint, validation_fingerprint;  // TokenSource::fingerprint()

  // The tokenizer's, or the one that the sidecars name; empty: unknown.
  std::string tokenizer_hash() const {
    return tokenizer.tokenizer ? tokenizer.tokenizer->hash() : facts.tokenizer_hash;
  }
};

// Opens the data of `config`. Sets an unset vocabulary to that of the data; checks the data against
// a set one. Throws when data and tokenizer do not fit, or there are none.
TrainingData open_training_data(Config& config);

}  // namespace quern
