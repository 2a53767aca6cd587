// Writes the files that transformers' AutoTokenizer needs, for tokenizers that lack them.
#pragma once

#include <filesystem>
#include <string>

#include "text/bpe_tokenizer.h"
#include "text/sentencepiece_tokenizer.h"

namespace quern {

// Writes tokenizer_config.json and special_tokens_map.json, each if missing. An existing config
// without an end token gets the one from the model's generation_config.json. With these files
// AutoTokenizer gives the same ids and adds only the begin token, if there is one.
void write_tokenizer_config(const std::filesystem::path& folder,
                            const SentencePieceTokenizer& tokenizer);
void write_tokenizer_config(const std::filesystem::path& folder, const BpeTokenizer& tokenizer);

// The byte tokenizer (byte_tokenizer.h) as a tokenizer.json: a byte-level BPE without merges, with
// ids equal to the byte values, and <|endoftext|>. open_tokenizer recognises this text.
std::string byte_tokenizer_json();

// The text of a tokenizer.json with the ids of `tokenizer`, which `quern tokenizer train` made: BPE
// with byte fallback, pieces in the order in which they were learnt, no space before a text. With
// this file transformers needs neither sentencepiece nor protobuf.
std::string sentencepiece_tokenizer_json(const SentencePieceTokenizer& tokenizer);

// Converts GPT-2's older form to a tokenizer.json: byte-level BPE with GPT-2's pattern, from the
// vocab.json and merges.txt of `folder` and the added tokens of its tokenizer_config.json. Throws
// when a file names a tokenizer other than GPT-2's: vocabulary and merges do not define the
// pre-tokenizer.
inline constexpr const char* kVocabularyFile = "vocab.json";
inline constexpr const char* kMergesFile = "merges.txt";
std::string gpt2_tokenizer_json(const std::filesystem::path& folder);

}  // namespace quern
