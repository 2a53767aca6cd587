// Tokens that are found in a text before anything else is done to it: "<|endoftext|>", "</s>".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quern {

struct AddedToken {
  int32_t id = 0;
  std::string content;      // not empty
  bool special = false;     // left out of decoded text when the reader wants it so
  bool normalized = false;  // looked for after normalisation, rather than in the text as given
};

// Tokens that are looked for together: the leftmost, and of those the longest.
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
      if (i > done) text(whole.substr(done, i - done));
      token(found->id);
      done = i += found->content.size();
    }
    if (done < whole.size()) text(whole.substr(done));
  }

 private:
  const AddedToken* at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;  // the longest first
  bool begins_[256] = {};           // bytes that one of them begins with
};

}  // namespace quern
