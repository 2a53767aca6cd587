#include "text/added_tokens.h"

#include <algorithm>

#include "base/error.h"

namespace quern {

void check_added_ids(std::span<const AddedToken> added, size_t vocabulary) {
  const size_t most = vocabulary + added.size() + 65536;
  for (const AddedToken& token : added) {
    QUERN_CHECK(token.id >= 0 && static_cast<size_t>(token.id) < most, "the added token '",
                token.content, "' has id ", token.id, ", expected 0 to ", most - 1);
  }
}

void AddedTokenFinder::add(const AddedToken& token) {
  QUERN_CHECK(!token.content.empty() && token.id >= 0, "an added token has id ", token.id,
              " and text '", token.content, "', expected an id of 0 or more and some text");
  tokens_.push_back(token);
  begins_[static_cast<unsigned char>(token.content[0])] = true;
}

void AddedTokenFinder::finish() {
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
}

const AddedToken* AddedTokenFinder::at(std::string_view rest) const {
  for (const AddedToken& token : tokens_) {
    if (rest.starts_with(token.content)) return &token;
  }
  return nullptr;
}

}  // namespace quern
