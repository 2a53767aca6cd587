// A SentencePiece BPE in the form of Hugging Face's tokenizer.json.
#pragma once

#include <string>

#include "text/sentencepiece_tokenizer.h"

namespace quern {

// The text of a tokenizer.json with the ids of `tokenizer`, which is one that `quern tokenizer
// train` makes: BPE with byte fallback whose pieces stand in the order in which they were learnt,
// without a space before a text. With it transformers needs neither sentencepiece nor protobuf.
std::string sentencepiece_tokenizer_json(const SentencePieceTokenizer& tokenizer);

}  // namespace quern
