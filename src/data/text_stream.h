// Streams the text of tokens one by one: only whole characters, and no part of a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace quern {

class TextStream {
 public:
  // `before`: the preceding tokens, among them the last one with text and all behind it: some
  // tokenizers drop a space at the start of a text, also behind a special token. The tokenizer must
  // outlive this object. Throws when a stop string is empty.
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before,
             std::vector<std::string> stops = {});

  // The new text that is certain, in valid UTF-8. Holds back an unfinished character and a possible
  // start of a stop string. Invalid UTF-8 becomes U+FFFD, and so does a token beyond the
  // tokenizer's vocabulary, which a model with a larger one may draw.
  std::string push(int32_t token);
  // The rest of the text, after the last token.
  std::string finish();

  // True after a stop string. Neither the string nor later text is returned.
  bool stopped() const { return stopped_; }

 private:
  size_t held_back() const;  // bytes at the end of pending_ that are not certain
  void cut_at_stop();

  const Tokenizer& tokenizer_;
  std::vector<int32_t> window_;  // from the last token with text on
  std::vector<std::string> stops_;
  std::string pending_;  // bytes not yet returned
  bool stopped_ = false;
};

// \n, \t and \\ in `text` become the characters; other backslashes stay.
std::string unescape(std::string_view text);

// Splits "a|b" into the strings a and b. "\|" and "\\" are literal; "\n" and "\t" are line feed and
// tab. Throws when a string is empty.
std::vector<std::string> split_stop_strings(std::string_view text);

}  // namespace quern
