// Tokenizers on disk.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace quern {

// `path`: "bytes"; a tokenizer.model of SentencePiece or a tokenizer.json of BPE, told apart by
// content; or a folder with one of the two, itself or in its tokenizer/, as a run and prepared data
// have it. Of both, tokenizer.json goes first, unless it is SentencePiece's BPE written anew. A
// folder with neither may have GPT-2's vocab.json and merges.txt. Begin and end tokens come from
// tokenizer_config.json and generation_config.json beside it. Throws naming the file and what is
// wrong.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path);

// The file that open_tokenizer reads. Throws when there is none, and for "bytes".
std::filesystem::path tokenizer_file(const std::filesystem::path& path);

// Whether a folder has one that open_tokenizer would find.
bool has_tokenizer(const std::filesystem::path& folder);

// open_tokenizer(path)->hash(), without making the tokenizer.
std::string tokenizer_hash(const std::filesystem::path& path);

// The files that make the tokenizer of `from` (as above), into a new folder `to`, so that
// transformers' AutoTokenizer loads it: tokenizer.model or tokenizer.json as they were (made for
// vocab.json and merges.txt), and tokenizer_config.json and special_tokens_map.json as they were or
// made. Nothing for "bytes".
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

// A new model of train_sentencepiece into the new folder `to`, with the files that AutoTokenizer
// needs.
std::shared_ptr<const Tokenizer> write_sentencepiece(const std::filesystem::path& to,
                                                     const std::string& model);

// The byte tokenizer in a form that AutoTokenizer loads, into a folder that is there.
// open_tokenizer knows it again and gives "bytes".
void write_byte_tokenizer(const std::filesystem::path& folder);

}  // namespace quern
