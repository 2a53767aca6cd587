// Trains a SentencePiece tokenizer on text: BPE with byte fallback (Sennrich et al. 2016; Kudo and
// Richardson 2018) and exact decoding.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/text_lines.h"

namespace quern {

struct SentencePieceTraining {
  int64_t vocabulary = 32000;        // with <unk>, <s> and </s> (0, 1, 2) and the 256 bytes
  std::vector<std::string> special;  // additional special tokens: "<|user|>"; see special_error
  bool split_digits = true;          // each digit is a token
  // The rarest characters, in total 1 - coverage of the text, become byte tokens.
  double coverage = 0.9995;
  int64_t sample_bytes = 100'000'000;  // approximate amount of text to train on; 0: all
  int threads = 1;
  LineTextOf line_text_of;  // for files whose lines are not plain text
};

struct SentencePieceResult {
  std::string model;                       // for the file tokenizer.model
  int64_t text_bytes = 0, used_bytes = 0;  // in the files, and in the training sample
};

// Describes the first invalid special token, behind the name of the list: "has '</s>', expected
// ...". Empty when all are valid: not empty, UTF-8, distinct, and no reserved token.
std::string special_error(std::span<const std::string> special);

// Called periodically with the current phase ("reading") and the fraction of the text done, 0 to 1;
// below 0: unknown.
using TrainingProgress = std::function<void(const std::string& what, double part)>;

// Reads files of UTF-8 text (plain, gzip or zstd) twice. Memory: about 20 times the bytes of the
// sample. Lines are sampled with a fixed seed: the same files and options give the same model for
// any number of threads. Invalid UTF-8 is dropped. Throws when a special token is invalid (before
// it reads a file), when a file cannot be read, when there is no text, and when the vocabulary is
// too small for the text's characters or too large for the text.
SentencePieceResult train_sentencepiece(std::span<const std::filesystem::path> files,
                                        const SentencePieceTraining& options,
                                        const TrainingProgress& progress = {});

}  // namespace quern
