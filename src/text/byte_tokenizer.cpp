#include "text/byte_tokenizer.h"

#include "base/error.h"

namespace quern {

namespace {

class ByteEncoder : public TokenEncoder {
 public:
  void encode(std::string_view text, std::vector<int32_t>& tokens) override {
    tokens.reserve(tokens.size() + text.size());
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  }
};

}  // namespace

std::unique_ptr<TokenEncoder> ByteTokenizer::encoder() const {
  return std::make_unique<ByteEncoder>();
}

std::string ByteTokenizer::decode(std::span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    QUERN_CHECK(token >= 0 && token <= kEndOfText, "decode: token ", i, " is ", token,
                ", expected a byte (0 to 255) or end of text (", kEndOfText, ")");
    if (token != kEndOfText) text.push_back(static_cast<char>(token));
  }
  return text;
}

}  // namespace quern
