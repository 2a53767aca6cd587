// Cuts text into the pieces that byte-pair encoding merges within: a word, a number, a run of
// punctuation. The patterns are those of Hugging Face's tokenizer.json, matched by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

// One regular expression. Every match is a piece, and so is what lies between two matches
// (the behaviour "Isolated").
class SplitPattern {
 public:
  // Throws with PCRE2's message and the place in the pattern.
  explicit SplitPattern(const std::string& pattern);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  // Appends the pieces of `text`, which is valid UTF-8. Throws when the match needs more than
  // PCRE2's limits.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

// GPT-2's pattern, which a ByteLevel pre-tokenizer with use_regex stands for.
extern const char* const kGpt2Pattern;

}  // namespace quern
