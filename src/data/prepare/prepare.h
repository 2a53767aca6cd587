// From text to token files: what `quern data prepare` does.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/document_reader.h"
#include "text/tokenizer.h"

namespace quern {

// automatic: by the name, without .gz or .zst: .jsonl and .ndjson are JSONL, the rest text; .json
// is refused, since it may be either.
enum class TextFormat { automatic, text, jsonl };

struct PrepareProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the sources as they lie on the disk
  int64_t tokens = 0, documents = 0;
};

struct PrepareOptions {
  std::vector<std::string> inputs;  // as find_input_files takes them
  std::filesystem::path out;        // must not be there
  std::string tokenizer = "bytes";  // as open_tokenizer takes it
  TextFormat format = TextFormat::automatic;
  std::string field = "text";          // of JSONL objects
  std::string split_on;                // of text: see DocumentReaderOptions
  double validation_fraction = 0.01;   // of the documents; 0: no validation files
  int64_t shard_tokens = 100'000'000;  // of every token file but the last
  // "auto": the tokenizer's, which must have one; "none"; or a token's number.
  std::string end_token = "auto";
  int64_t seed = 0;  // of the choice of validation documents
  int threads = 0;   // that encode; 0: one a core
  bool skip_bad = false;
  bool resume = false;

  // These change nothing in the result.
  size_t block = size_t{1} << 18;   // bytes of text that are handed to a thread at once
  double checkpoint_seconds = 5.0;  // between two places where --resume can go on
  std::function<void(const PrepareProgress&)> progress;  // after each block, on the calling thread
  const std::atomic<bool>* stop = nullptr;               // when it becomes true: stop after a block

  PieceSizes pieces;  // of long documents; other ones may give other tokens where no border is safe
  size_t longest_line = size_t{1} << 26;  // of JSONL
};

struct PreparedPart {
  int64_t shards = 0, tokens = 0, documents = 0;
};

struct PrepareResult {
  PreparedPart train, validation;
  int64_t sources = 0, bytes = 0, text_bytes = 0;
  int64_t empty = 0;                       // documents without text, left out
  std::map<std::string, int64_t> skipped;  // bad input by kind
  std::vector<std::string> bad;            // the first of them: "a.jsonl:3:7: ..."
  int64_t end_tokens_in_text = 0;          // that a document's own text made
  std::string validation_warning;          // how the validation part was chosen, or is off
  bool interrupted = false;                // by options.stop; --resume goes on
  bool was_complete = false;               // resumed, but there was nothing left to do
};

// Writes the folder `out`: train_00000.bin, ... and validation_00000.bin, ... (llm.c's form, uint16
// when every token fits), a sidecar beside each (token_sidecar.h), sources.json and tokenizer/. A
// document is followed by the end token, and goes to one of the two parts as a whole, chosen by the
// seed and its number. Text files that are too few for that (meets_fraction) are cut instead: the
// last validation_fraction of the text is the validation part, from the beginning of a line.
//
// It is written under the name OUT.part and renamed when it is whole. What an error or a stop
// leaves there is gone on with when `resume` is set, with the same result as without the
// interruption. Neither that nor the number of threads changes a byte of the output. Memory is
// bounded: about 5 bytes for each byte of text in flight, which are at most 64 MiB, or one line of
// JSONL.
//
// Throws naming the file and the place: of the first bad input (bad JSON, a missing field, one that
// is no string, invalid UTF-8 in JSON, a line too long, a file that is no text), unless skip_bad;
// of compressed data that is cut off or damaged; of output that cannot be written. Throws when a
// part would be empty.
PrepareResult prepare_data(const PrepareOptions& options);

}  // namespace quern
