// Statistics of token files, prepared or not, for `quern data inspect`.
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
  std::string tokenizer;  // a path for open_tokenizer; empty: the prepared folder's, if any
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

// Document lengths in tokens, without the end token.
struct LengthStats {
  int64_t documents = 0;
  int64_t shortest = 0, longest = 0;
  double mean = 0.0;
  int64_t median = 0;  // of an even number: the lower one
  // Documents of [2^k, 2^(k + 1)) tokens at index k + 1; empty ones at index 0.
  std::vector<int64_t> histogram;
};

// Files that form one token stream: "train", "validation", or the given path.
struct InspectedPart {
  std::string name;
  std::vector<InspectedFile> files;
  int64_t tokens = 0, largest = -1, unfinished = 0;
  std::optional<int64_t> documents;  // from the sidecars
  LengthStats lengths;               // empty without a known end token
};

struct Inspection {
  std::vector<InspectedPart> parts;
  std::optional<int32_t> end_token;
  std::shared_ptr<const Tokenizer> tokenizer;  // null: unknown
  int64_t window_begin = 0;
  std::vector<int32_t> window;  // of the first part
};

// Throws on a file that is not a token file or differs from its sidecar, a token outside the
// sidecar's vocabulary, a tokenizer that did not make the file, and a window beyond the end. Errors
// name the file, or the part for the window.
Inspection inspect_tokens(const InspectOptions& options);

}  // namespace quern
