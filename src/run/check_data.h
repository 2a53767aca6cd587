// What is known of a run's tokens beside themselves, and that it fits: the sidecars of token files
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

// What all sidecars of a dataset say alike.
struct TokenFacts {
  std::filesystem::path sidecar;  // the first; empty: there is none, and nothing is known
  int64_t vocabulary = 0;
  std::optional<int32_t> end_token;
  std::string tokenizer_hash;

  bool of_bytes() const { return tokenizer_hash == "bytes"; }
};

// Throws naming both files and both values when two disagree, when a file does not match its own
// or when only some token files have one. Reads no token.
TokenFacts read_token_facts(const Dataset& data);

// Throws naming both hashes and files when the sidecars are of another tokenizer than the run's.
void check_tokenizer(const TokenFacts& facts, const RunTokenizer& tokenizer);

// The vocabulary that a new model needs: the tokenizer's or the sidecars', else one more than the
// largest token, which reads every token.
int64_t needed_vocabulary(const Dataset& data, const TokenFacts& facts,
                          const RunTokenizer& tokenizer);

// Throws when a model of `vocab_size` has not all tokens of the data. Reads every token where no
// sidecar says what there is. `whose`: what set the size, for the message.
void check_vocabulary(const Dataset& data, const TokenFacts& facts, int64_t vocab_size,
                      const std::string& whose);

// How config.data samples and masks. Throws when document_mask is set and the end token is not
// known: it is 256 in text, else the sidecars' or the tokenizer's.
BatchOptions batch_options(const DataSection& section, const Dataset& data, const TokenFacts& facts,
                           const RunTokenizer& tokenizer);

}  // namespace quern
