// Added tokens, which are matched in a text before all other processing: "<|endoftext|>", "</s>".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/utf8.h"

namespace quern {

struct AddedToken {
  int32_t id = 0;
  std::string content;      // not empty
  bool special = false;     // may be left out of decoded text
  bool normalized = false;  // matched after normalisation instead of in the original text
  bool lstrip = false, rstrip = false;  // includes the white space before it, or behind it
};

// Throws when two tokens have one id, or an id lies so far beyond the vocabulary that a table by id
// would be mostly empty. `where` names the list: "tokenizer_config.json: added_tokens_decoder".
void check_added_ids(std::span<const AddedToken> added, size_t vocabulary,
                     const std::string& where);

// Finds added tokens in a text: the leftmost match; the longest one wins a tie.
class AddedTokenFinder {
 public:
  // Throws when the id is negative or the content empty.
  void add(const AddedToken& token);
  void finish();  // after the last add()

  // Calls text(part) and token(id) in turn, from left to right.
  template <class Text, class Token>
  void split(std::string_view whole, const Text& text, const Token& token) const {
    size_t done = 0;
    for (size_t i = 0; !tokens_.empty() && i < whole.size();) {
      const AddedToken* found =
          begins_[static_cast<unsigned char>(whole[i])] ? at(whole.substr(i)) : nullptr;
      if (!found) {
        ++i;
        continue;
      }
      size_t begin = i, end = i += found->content.size();
      while (found->lstrip && begin > done && space_suffix(whole.substr(0, begin)) > 0) {
        begin -= space_suffix(whole.substr(0, begin));
      }
      while (found->rstrip && space_prefix(whole.substr(end)) > 0) {
        end += space_prefix(whole.substr(end));
      }
      if (begin > done) text(whole.substr(done, begin - done));
      token(found->id);
      done = end;
    }
    if (done < whole.size()) text(whole.substr(done));
  }

 private:
  const AddedToken* at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;  // longest first
  bool begins_[256] = {};           // the tokens' first bytes
};

}  // namespace quern
