// Tokenizers on disk.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace quern {

// `path`: "bytes"; a SentencePiece tokenizer.model or a BPE tokenizer.json, distinguished by
// content; or a folder with one of them, directly or in tokenizer/ (as in a run or prepared data).
// tokenizer.json has priority over tokenizer.model, unless it is a converted SentencePiece model.
// The fallback is GPT-2's vocab.json with merges.txt. Begin and end tokens come from
// tokenizer_config.json and generation_config.json beside the file. Throws naming the file and the
// error.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

// The file that open_tokenizer reads. Throws when there is none, and for "bytes".
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

// True when open_tokenizer finds a tokenizer in the folder.
bool has_tokenizer(const std::filesystem::path& folder);

// open_tokenizer(path)->hash(), without constructing the tokenizer.
std::string tokenizer_hash(const std::filesystem::path& path);

// Copies the tokenizer `from` (a path as above) into a new folder `to` that transformers'
// AutoTokenizer loads. Copies tokenizer.model or tokenizer.json (generated from vocab.json and
// merges.txt), tokenizer_config.json and special_tokens_map.json (generated if missing). Does
// nothing for "bytes".
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);
// The same into a folder that is there.
void add_tokenizer(const std::filesystem::path& from, const std::filesystem::path& folder);

// Writes a model of train_sentencepiece to the new folder `to`, with AutoTokenizer's files.
std::shared_ptr<const Tokenizer> write_sentencepiece(const std::filesystem::path& to,
                                                     const std::string& model);

// Writes the byte tokenizer to an existing folder, in a form that AutoTokenizer loads and
// open_tokenizer recognises as "bytes".
void write_byte_tokenizer(const std::filesystem::path& folder);

}  // namespace quern
