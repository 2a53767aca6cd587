// Reads a BPE tokenizer from Hugging Face's tokenizer.json: byte-level (GPT-2, Llama 3, Qwen2.5,
// SmolLM2) or SentencePiece's with byte fallback (Llama 2, Mistral, Gemma, Phi-3).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/json_file.h"
#include "text/bpe_tokenizer.h"

namespace quern {

// `file`: a tokenizer.json, or GPT-2's vocab.json with merges.txt beside it (tokenizer_config.h).
// Throws an Error with the file, the location in it, the value found and the value expected.
// Unsupported models, normalizers and pre-tokenizers are refused by name.
BpeTokenizer read_hf_tokenizer(const std::filesystem::path& file);

// The special token that the template of a tokenizer.json's post_processor puts before a text
// (Llama 3's <|begin_of_text|>); empty: none.
std::optional<int32_t> read_begin_token(const JsonPlace& processor);

}  // namespace quern
