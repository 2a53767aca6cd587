#include "text/bpe_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "io/utf8.h"

namespace quern {

namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<signed char>(c) >= 0; });
}

// Unicode's normal form C of valid UTF-8.
std::string compose(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  QUERN_CHECK(bytes >= 0, "normalising text: ", utf8proc_errmsg(bytes));
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(bytes)};
}

class BpeEncoder : public TokenEncoder {
 public:
  explicit BpeEncoder(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}
  void encode(std::string_view text, std::vector<int32_t>& tokens) override {
    tokenizer_.encode(text, tokens, cache_);
  }

 private:
  const BpeTokenizer& tokenizer_;
  BpeCache cache_;
};

}  // namespace

BpeTokenizer::BpeTokenizer(BpeDefinition definition) : definition_(std::move(definition)) {
  bytes_ = definition_.vocabulary;
  std::array<int32_t, 256> byte_tokens;
  byte_tokens.fill(-1);
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (bytes_[id].size() == 1) {
      byte_tokens[static_cast<unsigned char>(bytes_[id][0])] = static_cast<int32_t>(id);
    }
  }
  for (size_t byte = 0; byte < byte_tokens.size(); ++byte) {
    QUERN_CHECK(byte_tokens[byte] >= 0, "the vocabulary has no token for byte ", byte,
                " alone, which byte-level BPE needs");
  }
  bpe_ = std::make_unique<Bpe>(byte_tokens, definition_.merges);
  for (const std::string& pattern : definition_.patterns) patterns_.emplace_back(pattern);

  special_.resize(bytes_.size());
  for (const AddedToken& token : definition_.added) {
    (token.normalized ? normalized_ : raw_).add(token);
    const auto id = static_cast<size_t>(token.id);
    if (id >= bytes_.size()) {
      bytes_.resize(id + 1);
      special_.resize(id + 1);
    }
    bytes_[id] = token.content;
    special_[id] = token.special;
  }
  raw_.finish();
  normalized_.finish();
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (!bytes_[id].empty()) ids_.emplace(bytes_[id], static_cast<int32_t>(id));
  }
}

int32_t BpeTokenizer::find(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? -1 : found->second;
}

std::unique_ptr<TokenEncoder> BpeTokenizer::encoder() const {
  return std::make_unique<BpeEncoder>(*this);
}

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens,
                          BpeCache& cache) const {
  const auto token = [&](int32_t id) { tokens.push_back(id); };
  const auto encode_part = [&](std::string_view part) {
    split_utf8(
        part,
        [&](std::string_view valid) {
          if (!definition_.nfc || is_ascii(valid)) return encode_normalized(valid, tokens, cache);
          encode_normalized(compose(valid), tokens, cache);
        },
        [&](std::string_view invalid) { bpe_->encode(invalid, tokens); });
  };
  raw_.split(text, encode_part, token);
}

void BpeTokenizer::encode_normalized(std::string_view text, std::vector<int32_t>& tokens,
                                     BpeCache& cache) const {
  normalized_.split(
      text, [&](std::string_view part) { encode_valid(part, tokens, cache); },
      [&](int32_t id) { tokens.push_back(id); });
}

void BpeTokenizer::encode_valid(std::string_view text, std::vector<int32_t>& tokens,
                                BpeCache& cache) const {
  std::string spaced;
  if (definition_.add_prefix_space && !text.starts_with(' ')) {
    spaced = " ";
    text = spaced += text;
  }
  std::vector<std::string_view> pieces{text}, finer;
  for (const SplitPattern& pattern : patterns_) {
    finer.clear();
    for (const std::string_view piece : pieces) pattern.split(piece, finer);
    std::swap(pieces, finer);
  }
  for (const std::string_view piece : pieces) encode_piece(piece, tokens, cache);
}

void BpeTokenizer::encode_piece(std::string_view piece, std::vector<int32_t>& tokens,
                                BpeCache& cache) const {
  if (const std::vector<int32_t>* known = cache.find(piece)) {
    tokens.insert(tokens.end(), known->begin(), known->end());
    return;
  }
  const size_t before = tokens.size();
  const int32_t whole = definition_.ignore_merges ? find(piece) : -1;
  if (whole >= 0) {
    tokens.push_back(whole);
  } else {
    bpe_->encode(piece, tokens);
  }
  cache.insert(piece, std::span(tokens).subspan(before));
}

std::string BpeTokenizer::decode(std::span<const int32_t> tokens, bool skip_special) const {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t token = tokens[i];
    QUERN_CHECK(token >= 0 && token < vocabulary(), "decode: token ", i, " is ", token,
                ", expected 0 to ", vocabulary() - 1);
    const auto id = static_cast<size_t>(token);
    if (!(skip_special && special_[id])) text += bytes_[id];
  }
  return text;
}

}  // namespace quern
