// Text as bytes: tokens 0 to 255 are the bytes themselves, 256 separates documents.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.h"

namespace quern {

inline constexpr int32_t kEndOfText = 256;
inline constexpr int64_t kByteVocabulary = 257;

class ByteTokenizer : public Tokenizer {
 public:
  std::unique_ptr<TokenEncoder> encoder() const override;
  // The original bytes, valid UTF-8 or not; end of text adds nothing. Throws naming position and
  // value of any other token.
  std::string decode(std::span<const int32_t> tokens) const override;
  int64_t vocabulary() const override { return kByteVocabulary; }
  std::optional<int32_t> end_token() const override { return kEndOfText; }
  std::optional<int32_t> begin_token() const override { return {}; }
  std::string hash() const override { return "bytes"; }
  std::string kind() const override { return "bytes"; }
};

}  // namespace quern
