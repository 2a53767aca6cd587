#include "text/added_tokens.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace quern {

void check_added_ids(std::span<const AddedToken> added, size_t vocabulary,
                     const std::string& where) {
  const size_t most = vocabulary + added.size() + 65536;
  std::unordered_map<int32_t, std::string_view> contents;
  for (const AddedToken& token : added) {
    QUERN_CHECK(token.id >= 0 && static_cast<size_t>(token.id) < most, where, " has '",
                token.content, "' with id ", token.id, ", expected 0 to ", most - 1);
    const auto [known, first] = contents.emplace(token.id, token.content);
    QUERN_CHECK(first || known->second == token.content, where, " has '", token.content,
                "' with id ", token.id, ", expected another id than that of '", known->second, "'");
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
