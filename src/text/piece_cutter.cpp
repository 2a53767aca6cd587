#include "text/piece_cutter.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace quern {

namespace {

constexpr int kMostBorders = 64;

bool continues(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Unicode's White_Space beyond ASCII: U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
// U+202F, U+205F, U+3000.
constexpr std::array<std::string_view, 19> kSpaces = {
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

bool is_ascii_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool begins_with_space(std::string_view text) {
  if (text.empty() || is_ascii_space(text[0])) return true;
  if (static_cast<signed char>(text[0]) >= 0) return false;
  return std::any_of(kSpaces.begin(), kSpaces.end(),
                     [&](std::string_view space) { return text.starts_with(space); });
}

bool ends_with_space(std::string_view text) {
  if (text.empty() || is_ascii_space(text.back())) return true;
  if (static_cast<signed char>(text.back()) >= 0) return false;
  return std::any_of(kSpaces.begin(), kSpaces.end(),
                     [&](std::string_view space) { return text.ends_with(space); });
}

// The last place at or before `at` where a character begins; `at` itself where the text is no
// UTF-8.
size_t character_before(std::string_view text, size_t at) {
  for (size_t back = 0; back < 4 && back <= at; ++back) {
    if (at - back == text.size() || !continues(text[at - back])) return at - back;
  }
  return at;
}

}  // namespace

PieceCutter::PieceCutter(const Tokenizer& tokenizer, PieceSizes sizes)
    : encoder_(tokenizer.encoder()), sizes_(sizes), bytes_(tokenizer.kind() == "bytes") {
  QUERN_CHECK(sizes.target >= 8 && sizes.longest >= sizes.target, "piece sizes are ", sizes.target,
              " to ", sizes.longest, " bytes, expected 8 or more, the smaller first");
}

Piece PieceCutter::next(std::string_view text, bool complete) {
  QUERN_CHECK(complete || text.size() >= lookahead(), "cutting a document: found ", text.size(),
              " bytes of it, expected ", lookahead(), " or all");
  if (complete && text.size() <= sizes_.target) return {text.size(), 0, true};
  if (bytes_) return {sizes_.target, 0, false};
  const Border border = find_border(text);
  if (border.end > 0) return {border.end, border.gap, false};
  if (complete && text.size() <= sizes_.longest) return {text.size(), 0, true};
  if (border.first_line > 0) return {border.first_line, 0, false};
  return {character_before(text, sizes_.longest), 0, false};
}

PieceCutter::Border PieceCutter::find_border(std::string_view text) const {
  const size_t last = std::min(sizes_.longest, text.size() - 1);
  size_t first_line = 0;
  int seen = 0;
  for (size_t at = sizes_.target; at <= last && seen < kMostBorders; ++at) {
    const char c = text[at], before = text[at - 1];
    if (before == '\n') {
      if (ends_with_space(text.substr(0, at - 1)) || begins_with_space(text.substr(at))) continue;
      if (safe(text, at, at)) return {at, 0, first_line};
      if (first_line == 0) first_line = at;
      ++seen;
    } else if (c == ' ') {
      if (ends_with_space(text.substr(0, at)) || begins_with_space(text.substr(at + 1))) continue;
      if (safe(text, at, at)) return {at, 0, first_line};
      if (safe(text, at, at + 1)) return {at, 1, first_line};
      ++seen;
    }
  }
  return {0, 0, first_line};
}

bool PieceCutter::safe(std::string_view text, size_t end, size_t begin) const {
  const size_t from = character_before(text, end - std::min(end, sizes_.probe));
  const size_t to = character_before(text, std::min(text.size(), begin + sizes_.probe));
  std::vector<int32_t> whole, parts;
  encoder_->encode(text.substr(from, to - from), whole);
  encoder_->encode(text.substr(from, end - from), parts);
  encoder_->encode(text.substr(begin, to - begin), parts);
  return whole == parts;
}

}  // namespace quern
