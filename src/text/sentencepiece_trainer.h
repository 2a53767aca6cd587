// Learns a SentencePiece tokenizer from text: BPE with byte fallback (Sennrich et al. 2016; Kudo
// and Richardson 2018), in which decoding gives back the text byte by byte.
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
  std::vector<std::string> special;  // further tokens that stand for no text: "<|user|>"
  bool split_digits = true;          // each digit is a token
  // The rarest characters, together 1 - coverage of the text, are spelled by bytes.
  double coverage = 0.9995;
  int64_t sample_bytes = 100'000'000;  // of text to learn from, about; 0: all of it
  int threads = 1;
  LineTextOf line_text_of;  // for files whose lines are not text themselves
};

struct SentencePieceResult {
  std::string model;                       // for the file tokenizer.model
  int64_t text_bytes = 0, used_bytes = 0;  // in the files, and learnt from
};

// Called now and then: what is being done ("reading"), and with how much of the text, 0 to 1;
// less than 0: not known.
using TrainingProgress = std::function<void(const std::string& what, double part)>;

// Files of UTF-8 text, gzip or zstd if need be, are read twice, in bounded memory: about 20 times
// the bytes that are learnt from. Lines are drawn by a fixed seed: the same files and options give
// the same model, whatever the threads. Bytes that are no UTF-8 are left out. Throws when a file
// cannot be read, when there is no text, and when the vocabulary is too small for its characters or
// too large for it to fill.
SentencePieceResult train_sentencepiece(std::span<const std::filesystem::path> files,
                                        const SentencePieceTraining& options,
                                        const TrainingProgress& progress = {});

}  // namespace quern
