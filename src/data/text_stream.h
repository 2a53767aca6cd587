// The text of tokens as they come, one by one: whole characters only, and nothing of a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace quern {

class TextStream {
 public:
  // Follows `before`, the last token of the prompt when there is one: some tokenizers write a token
  // otherwise at the start of a text. The tokenizer outlives this object. Throws when a stop string
  // is empty.
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before,
             std::vector<std::string> stops = {});

  // The text that is certain now, in valid UTF-8: without an unfinished character, and without what
  // may be the beginning of a stop string. Bytes that are no UTF-8 become U+FFFD.
  std::string push(int32_t token);
  // The rest: no more tokens will come.
  std::string finish();

  // A stop string has come. Neither it nor anything after it is given.
  bool stopped() const { return stopped_; }

 private:
  size_t held_back() const;  // bytes at the end of pending_ that are not certain
  void cut_at_stop();

  const Tokenizer& tokenizer_;
  std::vector<int32_t> window_;  // the token before, and the one that comes
  std::vector<std::string> stops_;
  std::string pending_;  // bytes not given yet
  bool stopped_ = false;
};

// \n, \t and \\ in `text` become the characters; other backslashes stay.
std::string unescape(std::string_view text);

// "a|b" is the two strings a and b; "\|" and "\\" are the characters, "\n" and "\t" the usual ones.
// Throws when one of them is empty.
std::vector<std::string> split_stop_strings(std::string_view text);

}  // namespace quern
