// Reads Hugging Face's tokenizer.json, as far as it is a BPE: byte-level (GPT-2, Llama 3, Qwen2.5,
// SmolLM2) or SentencePiece's with byte fallback (Llama 2, Mistral, Gemma, Phi-3).
#pragma once

#include <filesystem>

#include "text/bpe_tokenizer.h"

namespace quern {

// `file`: a tokenizer.json, or GPT-2's vocab.json with merges.txt beside it (tokenizer_config.h).
// Throws an Error that names the file, the place in it, what was found and what was expected; what
// Quern does not compute (other models, normalisers or pre-tokenizers) is refused by name.
BpeTokenizer read_hf_tokenizer(const std::filesystem::path& file);

}  // namespace quern
