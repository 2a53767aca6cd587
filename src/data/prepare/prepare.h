// Converts text to token files, for `quern data prepare`.
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

// automatic: by the name without .gz or .zst. .jsonl and .ndjson are JSONL; .json is refused, since
// it may be either; all other names are text.
enum class TextFormat { automatic, text, jsonl };

struct PrepareProgress {
  int64_t bytes = 0, total_bytes = 0;  // on-disk bytes of the sources
  int64_t tokens = 0, documents = 0;
};

struct PrepareOptions {
  std::vector<std::string> inputs;  // see find_input_files
  std::filesystem::path out;        // must not exist
  std::string tokenizer = "bytes";  // see open_tokenizer
  TextFormat format = TextFormat::automatic;
  std::optional<std::string> field;    // of JSONL objects; none: "text"
  std::string split_on;                // for text: see DocumentReaderOptions
  double validation_fraction = 0.01;   // of the documents; 0: no validation files
  int64_t shard_tokens = 100'000'000;  // in every token file except the last
  // "auto": the tokenizer's, which must have one; "none"; or a token id.
  std::string end_token = "auto";
  int64_t seed = 0;  // selects the validation documents
  int threads = 0;   // encoder threads; 0: one per core
  bool skip_bad = false;
  bool resume = false;

  // These do not affect the result.
  size_t block = size_t{1} << 18;                        // bytes of text in a thread's unit of work
  double checkpoint_seconds = 5.0;                       // between two checkpoints for --resume
  std::function<void(const PrepareProgress&)> progress;  // after each block, on the calling thread
  const std::atomic<bool>* stop = nullptr;               // true stops the run after a block

  PieceSizes pieces;  // for long documents; may change the tokens if no border is safe
  size_t longest_line = size_t{1} << 26;  // of JSONL
};

struct PreparedPart {
  int64_t shards = 0, tokens = 0, documents = 0;
};

struct PrepareResult {
  PreparedPart train, validation;
  int64_t sources = 0, bytes = 0, text_bytes = 0;
  int64_t empty = 0;                       // documents without text, skipped
  std::map<std::string, int64_t> skipped;  // bad input by kind
  std::vector<std::string> bad;            // the first messages: "a.jsonl:3:7: ..."
  int64_t end_tokens_in_text = 0;          // end tokens from a document's own text
  std::string validation_warning;          // an unexpected validation part; empty: none
  bool interrupted = false;                // by options.stop; --resume continues
  bool was_complete = false;               // --resume found a finished result
};

// Writes the folder `out`: train_00000.bin, ... and validation_00000.bin, ... (llm.c's format,
// uint16 if every token fits), a sidecar for each (token_sidecar.h), sources.json and tokenizer/.
// The end token follows each document. A document goes undivided to one part, chosen by the seed
// and its index. If that misses the fraction for few text files (meets_fraction), the last
// validation_fraction of the text is the validation part, from the start of a line.
//
// The folder is written as OUT.part and renamed when complete. `resume` continues a run that an
// error or a stop interrupted. Neither an interruption nor the number of threads changes a byte of
// the output. Memory: at most 4 bytes for each byte of text in flight (at most 64 MiB, or one line
// of JSONL).
//
// Throws naming the file and the location of the first bad input, unless skip_bad: bad JSON, a
// field that is missing or not a string, invalid UTF-8 in JSON, a line that is too long, a file
// that is not text. Throws also on truncated or damaged compressed data, on output that cannot be
// written, when a part would be empty, and when no input is of the format that `field` or
// `split_on` applies to.
PrepareResult prepare_data(const PrepareOptions& options);

}  // namespace quern
