// Metadata of a run's tokens, and checks that it agrees: the sidecars of token files
// (data/token_sidecar.h), the tokenizer and the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "run/run_tokenizer.h"

namespace quern {

// The values on which all sidecars of a dataset agree.
struct TokenFacts {
  std::filesystem::path sidecar;  // the first; empty: no sidecar, all values are unknown
  int64_t vocabulary = 0;
  std::optional<int32_t> end_token;
  std::string tokenizer_hash;

  bool of_bytes() const { return tokenizer_hash == "bytes"; }
};

// Throws with both files and both values when two sidecars disagree, and when a file does not match
// its own sidecar or only some token files have one. Reads no token.
TokenFacts read_token_facts(const Dataset& data);

// Throws with both hashes and files when the sidecars name another tokenizer than the run's.
void check_tokenizer(const TokenFacts& facts, const RunTokenizer& tokenizer);

// The vocabulary that a new model needs: the tokenizer's or the sidecars', else one more than the
// largest token, which reads every token.
int64_t needed_vocabulary(const Dataset& data, const TokenFacts& facts,
                          const RunTokenizer& tokenizer);

// Throws when the data has tokens outside a vocabulary of `vocab_size`. Reads every token unless a
// sidecar states the vocabulary. `whose`: the source of the size, for the message.
void check_vocabulary(const Dataset& data, const TokenFacts& facts, int64_t vocab_size,
                      const std::string& whose);

// The sampling and masking of config.data. Throws when document_mask is set and the end token is
// unknown: it is 256 in text, else the sidecars' or the tokenizer's.
BatchOptions batch_options(const DataSection& section, const Dataset& data, const TokenFacts& facts,
                           const RunTokenizer& tokenizer);

}  // namespace quern
