// What transformers' AutoTokenizer needs beside a tokenizer, written for those that come without.
#pragma once

#include <filesystem>
#include <string>

#include "text/bpe_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"

namespace quern {

// tokenizer_config.json and special_tokens_map.json into the folder, each unless it is there; one
// that names no end token gets it (it came from generation_config.json, which is the model's). With
// them AutoTokenizer gives the same ids and adds the begin token alone, where there is one.
void write_tokenizer_config(const std::filesystem::path& folder,
                            const SentencePieceTokenizer& tokenizer);
void write_tokenizer_config(const std::filesystem::path& folder, const BpeTokenizer& tokenizer);

// The byte tokenizer (byte_tokenizer.h) as a tokenizer.json: a byte-level BPE without merges, whose
// ids are the bytes' values, and <|endoftext|>. tokenizer_files.h writes and knows it.
std::string byte_tokenizer_json();

// The tokenizer.json for GPT-2's older form: byte-level BPE with GPT-2's pattern, from the
// vocab.json and merges.txt of `folder` and the added tokens of its tokenizer_config.json. Throws
// when one of its files names another tokenizer than GPT-2's, since vocabulary and merges do not
// say how that cuts text.
inline constexpr const char* kVocabularyFile = "vocab.json";
inline constexpr const char* kMergesFile = "merges.txt";
std::string gpt2_tokenizer_json(const std::filesystem::path& folder);

}  // namespace quern
