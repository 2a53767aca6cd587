// Converts a SentencePiece BPE to Hugging Face's tokenizer.json.
#pragma once

#include <string>

#include "text/sentencepiece_tokenizer.h"

namespace quern {

// The text of a tokenizer.json with the ids of `tokenizer`, which `quern tokenizer train` made: BPE
// with byte fallback, pieces in the order in which they were learnt, no space before a text. With
// this file transformers needs neither sentencepiece nor protobuf.
std::string sentencepiece_tokenizer_json(const SentencePieceTokenizer& tokenizer);

}  // namespace quern
