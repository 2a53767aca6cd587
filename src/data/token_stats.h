// What can be counted in token files: the largest token, and how long the documents are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "data/token_file.h"

namespace quern {

// Of documents, in tokens, without the end token.
struct LengthStats {
  int64_t documents = 0;
  int64_t shortest = 0, longest = 0;
  double mean = 0.0;
  int64_t median = 0;  // the lower one of two
  // Documents of [2^k, 2^(k + 1)) tokens at place k + 1; empty ones at place 0.
  std::vector<int64_t> histogram;
};

// Sees token files one after the other, as one row of tokens.
class TokenCounter {
 public:
  // Without an end token there are no documents to measure.
  explicit TokenCounter(std::optional<int32_t> end_token) : end_token_(end_token) {}

  void add(const TokenFile& file);  // reads all of it
  int64_t tokens() const { return tokens_; }
  int64_t largest() const { return largest_; }    // -1: no token
  int64_t unfinished() const { return length_; }  // tokens after the last end token
  LengthStats lengths() const;                    // of documents that end

 private:
  std::optional<int32_t> end_token_;
  int64_t tokens_ = 0, largest_ = -1, length_ = 0;
  std::map<int64_t, int64_t> counts_;  // documents by length
};

}  // namespace quern
