#include "text/bpe_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "io/utf8.h"
#include "text/byte_alphabet.h"
#include "text/space_mark.h"

namespace quern {

namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<signed char>(c) >= 0; });
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

// The byte of a token such as "<0x7F>" (SentencePiece); -1: another token.
int spelled_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 ? byte : -1;
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeDefinition definition) : definition_(std::move(definition)) {
  read_vocabulary();
  check_added_ids(definition_.added, bytes_.size(), "added_tokens");
  for (const std::string& pattern : definition_.patterns) patterns_.emplace_back(pattern);
  for (const AddedToken& token : definition_.added) {
    AddedToken sought = token;
    if (token.normalized) sought.content = normalize(token.content, true);
    if (!(token.special && definition_.split_special)) {
      (token.normalized ? normalized_ : raw_).add(sought);
    }
    const auto id = static_cast<size_t>(token.id);
    if (id >= bytes_.size()) bytes_.resize(id + 1);
    special_.resize(bytes_.size());
    bytes_[id] = definition_.byte_fallback ? spaces_for_marks(sought.content) : token.content;
    special_[id] = token.special;
    ids_.emplace(token.content, token.id);
  }
  raw_.finish();
  normalized_.finish();
}

void BpeTokenizer::read_vocabulary() {
  std::array<int32_t, 256> byte_tokens;
  byte_tokens.fill(-1);
  BpeTokens characters;
  const bool fallback = definition_.byte_fallback;
  for (size_t i = 0; i < definition_.vocabulary.size(); ++i) {
    const std::string& token = definition_.vocabulary[i];
    const auto id = static_cast<int32_t>(i);
    if (!token.empty()) ids_.emplace(token, id);
    const int spelled = fallback ? spelled_byte(token) : -1;
    if (spelled >= 0) {
      bytes_.emplace_back(1, static_cast<char>(spelled));
    } else {
      bytes_.push_back(fallback ? spaces_for_marks(token) : token);
    }
    if (fallback ? spelled >= 0 : token.size() == 1) {
      byte_tokens[static_cast<unsigned char>(bytes_.back()[0])] = id;
    } else if (fallback && std::ranges::count(token, false, continues_utf8) == 1) {  // a character
      characters.emplace(token, id);
    }
  }
  for (size_t byte = 0; byte < byte_tokens.size(); ++byte) {
    QUERN_CHECK(byte_tokens[byte] >= 0, "the vocabulary has no token for byte ", byte, " alone, ",
                fallback ? "which byte fallback needs" : "which byte-level BPE needs");
  }
  special_.resize(bytes_.size());
  bpe_ = std::make_unique<Bpe>(byte_tokens, definition_.merges, std::move(characters));
  const auto& tokens = definition_.vocabulary;
  cuts_words_ = std::ranges::none_of(definition_.merges, [&](const BpeMerge& merge) {
    return spans_words(tokens[static_cast<size_t>(merge.result)]);
  });
}

int32_t BpeTokenizer::find(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? -1 : found->second;
}

std::string BpeTokenizer::content(int32_t id) const {
  for (const AddedToken& token : definition_.added) {
    if (token.id == id) return token.content;
  }
  QUERN_CHECK(id >= 0 && id < std::ssize(definition_.vocabulary), "token ", id, " has no text");
  const std::string& token = definition_.vocabulary[static_cast<size_t>(id)];
  if (definition_.byte_fallback) return token;
  const ByteAlphabet alphabet;
  std::string text;
  for (const char c : token) text += alphabet.character(static_cast<unsigned char>(c));
  return text;
}

std::unique_ptr<TokenEncoder> BpeTokenizer::encoder() const {
  return std::make_unique<CachedEncoder<BpeTokenizer>>(*this);
}

void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& tokens,
                          BpeCache& cache) const {
  const auto encode_utf8 = [&](std::string_view part) {
    Start start = part.data() == text.data() ? Start::text : Start::part;
    split_utf8(
        part,
        [&](std::string_view valid) {
          encode_valid(valid, start, tokens, cache);
          start = Start::middle;
        },
        [&](std::string_view invalid) {
          bpe_->encode(invalid, tokens);
          start = Start::middle;
        });
  };
  raw_.split(text, encode_utf8, [&](int32_t id) { tokens.push_back(id); });
}

std::string BpeTokenizer::normalize(std::string_view text, bool prepend) const {
  std::string normalized;
  if (prepend && definition_.prepend_mark) normalized = kSpaceMark;
  normalized += definition_.nfc && !is_ascii(text) ? compose(text) : text;
  return definition_.normalize_marks ? marks_for_spaces(normalized) : normalized;
}

void BpeTokenizer::encode_valid(std::string_view text, Start start, std::vector<int32_t>& tokens,
                                BpeCache& cache) const {
  std::string normalized;
  if (definition_.nfc || definition_.prepend_mark || definition_.normalize_marks) {
    text = normalized = normalize(text, start != Start::middle);
  }
  normalized_.split(
      text,
      [&](std::string_view part) {
        const bool first = part.data() == text.data();
        encode_part(part, first ? start : Start::part, tokens, cache);
      },
      [&](int32_t id) { tokens.push_back(id); });
}

// `text`: UTF-8 without added tokens.
void BpeTokenizer::encode_part(std::string_view text, Start start, std::vector<int32_t>& tokens,
                               BpeCache& cache) const {
  using Prefix = BpeDefinition::Prefix;
  std::string changed;
  if (definition_.byte_fallback && !definition_.normalize_marks) {
    text = changed = marks_for_spaces(text);
  }
  const std::string_view space = definition_.byte_fallback ? kSpaceMark : " ";
  const bool prefixed =
      definition_.prefix == Prefix::always ? start != Start::middle : start == Start::text;
  if (definition_.prefix != Prefix::never && prefixed && !text.starts_with(space)) {
    text = changed = cat(space, text);
  }
  if (definition_.byte_fallback) {
    const bool words = cuts_words_ && !definition_.ignore_merges;
    while (!text.empty()) {
      size_t size = words ? word_size(text) : text.size();
      if (definition_.split_marks) size = std::min(text.find(kSpaceMark, 1), text.size());
      encode_piece(text.substr(0, size), tokens, cache);
      text.remove_prefix(size);
    }
    return;
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
  if (definition_.strip_decoded && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

}  // namespace quern
