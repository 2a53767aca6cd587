// Looks at token files, prepared or not: what `quern data inspect` shows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/token_sidecar.h"
#include "text/tokenizer.h"

namespace quern {

struct InspectOptions {
  std::string path;       // a token file, a prepared folder, or a pattern
  std::string tokenizer;  // as open_tokenizer takes it; empty: the prepared folder's, if it is one
  bool verify = false;    // compare the checksums with the sidecars
  int64_t window = 0;     // the first token of the window
  int64_t length = 64;    // of the window
};

struct InspectedFile {
  std::filesystem::path path;
  TokenEncoding encoding = TokenEncoding::raw_u16;
  int64_t tokens = 0;
  std::optional<TokenSidecar> sidecar;
};

// Of documents, in tokens, without the end token.
struct LengthStats {
  int64_t documents = 0;
  int64_t shortest = 0, longest = 0;
  double mean = 0.0;
  int64_t median = 0;  // the lower one of two
  // Documents of [2^k, 2^(k + 1)) tokens at place k + 1; empty ones at place 0.
  std::vector<int64_t> histogram;
};

// Files that are one row of tokens: "train", "validation", or what was asked for.
struct InspectedPart {
  std::string name;
  std::vector<InspectedFile> files;
  int64_t tokens = 0, largest = -1, unfinished = 0;
  std::optional<int64_t> documents;  // by the sidecars
  LengthStats lengths;               // by the end token, when that is known
};

struct Inspection {
  std::vector<InspectedPart> parts;
  std::optional<int32_t> end_token;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: not known
  int64_t window_begin = 0;
  std::vector<int32_t> window;  // of the first part
};

// Throws naming the file: when it is no token file, when it differs from its sidecar, when a token
// lies beyond the sidecar's vocabulary, when the tokenizer is not the one that made it, and when
// the window lies beyond the end.
Inspection inspect_tokens(const InspectOptions& options);

}  // namespace quern
