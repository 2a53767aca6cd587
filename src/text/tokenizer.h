// The interface of all tokenizers: bytes (byte_tokenizer.h), BPE (bpe_tokenizer.h) and
// SentencePiece (sentencepiece_tokenizer.h). text/tokenizer_files.h opens one by its path.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// Encodes on one thread, since it may keep a cache. Valid as long as its tokenizer.
class TokenEncoder {
 public:
  virtual ~TokenEncoder() = default;
  // Appends the tokens of `text` (any bytes), without begin and end tokens.
  virtual void encode(std::string_view text, std::vector<int32_t>& tokens) = 0;
};

// Immutable and shared between threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::unique_ptr<TokenEncoder> encoder() const = 0;
  // The bytes of the tokens, which may end within a character. Special tokens (the begin and end of
  // a text) have none. Throws naming position and value of a token outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> tokens) const = 0;

  virtual int64_t vocabulary() const = 0;  // highest id + 1
  // Separates documents and ends a generated text; empty: none.
  virtual std::optional<int32_t> end_token() const = 0;
  // The token that models expect before a text (Llama's <s>); empty: none.
  virtual std::optional<int32_t> begin_token() const = 0;
  // "bytes", or the XXH3 of the defining file in 16 hexadecimal digits. It does not cover what
  // tokenizer_config.json adds: tokens beyond the file's, `legacy`, split_special_tokens.
  virtual std::string hash() const = 0;
  virtual std::string kind() const = 0;  // "bytes", "bpe" or "sentencepiece"

  // Encodes a short text in one call.
  std::vector<int32_t> encode(std::string_view text) const {
    std::vector<int32_t> tokens;
    encoder()->encode(text, tokens);
    return tokens;
  }
};

}  // namespace quern
