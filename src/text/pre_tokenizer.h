// Splits text into pieces (a word, a number, a run of punctuation); byte-pair encoding merges only
// within a piece. The patterns are those of Hugging Face's tokenizer.json, matched by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// One regular expression. Every match is a piece, and so is the text between two matches
// (behaviour "Isolated").
class SplitPattern {
 public:
  // Throws with PCRE2's message and the position in the pattern.
  explicit SplitPattern(const std::string& pattern);

  // Appends the pieces of `text`, which must be valid UTF-8. Throws when a match exceeds PCRE2's
  // limits.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  std::shared_ptr<Compiled> compiled_;
};

// GPT-2's pattern: the ByteLevel pre-tokenizer with use_regex applies it.
extern const char* const kGpt2Pattern;

}  // namespace quern
