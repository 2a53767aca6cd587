#include "io/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace quern {

namespace {

constexpr std::string_view kReplacement = "\uFFFD";

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

// Length of a character that begins with this byte; 0: the byte cannot begin one.
size_t length_of(uint8_t first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // a continuation, or an overlong form
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

// The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
bool second_fits(uint8_t first, uint8_t second) {
  switch (first) {
    case 0xE0: return second >= 0xA0;
    case 0xED: return second < 0xA0;
    case 0xF0: return second >= 0x90;
    case 0xF4: return second < 0x90;
    default: return true;
  }
}

// Length of the valid character at `i`; 0 when there is none.
size_t character_at(std::string_view text, size_t i) {
  const size_t length = length_of(byte_at(text, i));
  if (length == 0 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if (!continues_utf8(text[i + k])) return 0;
  }
  return length == 1 || second_fits(byte_at(text, i), byte_at(text, i + 1)) ? length : 0;
}

// Unicode's White_Space beyond ASCII: U+0085, U+00A0, U+1680, U+2000 to U+200A, U+2028, U+2029,
// U+202F, U+205F, U+3000.
constexpr std::string_view kSpaces[] = {
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

// `last`: the outermost byte at one end of the text; is_at(space): true if the space is there.
template <class IsAt>
size_t space_size(char last, const IsAt& is_at) {
  if (static_cast<signed char>(last) >= 0) return last == ' ' || (last >= '\t' && last <= '\r');
  const auto* found = std::find_if(std::begin(kSpaces), std::end(kSpaces), is_at);
  return found == std::end(kSpaces) ? 0 : found->size();
}

}  // namespace

size_t space_prefix(std::string_view text) {
  if (text.empty()) return 0;
  return space_size(text.front(), [&](std::string_view space) { return text.starts_with(space); });
}

size_t space_suffix(std::string_view text) {
  if (text.empty()) return 0;
  return space_size(text.back(), [&](std::string_view space) { return text.ends_with(space); });
}

size_t valid_utf8_prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word = 0;
    if (i + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if ((word & kHighBits) == 0) {
        i += sizeof word;
        continue;
      }
    }
    const size_t length = character_at(text, i);
    if (length == 0) return i;
    i += length;
  }
  return i;
}

size_t unfinished_utf8_suffix(std::string_view text) {
  const size_t most = std::min<size_t>(text.size(), 3);
  for (size_t back = 1; back <= most; ++back) {
    const size_t i = text.size() - back;
    if (continues_utf8(text[i])) continue;
    const uint8_t first = byte_at(text, i);
    const bool begun =
        length_of(first) > back && (back == 1 || second_fits(first, byte_at(text, i + 1)));
    return begun ? back : 0;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    valid += text.substr(0, good);
    text.remove_prefix(good);
    if (text.empty()) break;
    size_t bad = std::min<size_t>(text.size(), 3);
    while (bad > 1 && unfinished_utf8_suffix(text.substr(0, bad)) != bad) --bad;
    valid += kReplacement;
    text.remove_prefix(bad);
  }
  return valid;
}

std::string printable_utf8(std::string_view text) {
  const std::string valid = replace_invalid_utf8(text);
  std::string shown;
  for (size_t i = 0; i < valid.size(); ++i) {
    const uint8_t byte = byte_at(valid, i);
    const bool c1 = byte == 0xC2 && byte_at(valid, i + 1) < 0xA0;  // U+0080 to U+009F
    if (c1 || byte == 0x7F || (byte < 0x20 && byte != '\n' && byte != '\t' && byte != '\r')) {
      shown += kReplacement;
      if (c1) ++i;
    } else if (byte != '\r') {
      shown += valid[i];
    }
  }
  return shown;
}

}  // namespace quern
