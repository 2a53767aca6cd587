// UTF-8: validation, replacement of invalid bytes, white space.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quern {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // may begin a file of text

// True for a byte inside a character, behind its first.
inline bool continues_utf8(char byte) {
  return (byte & 0xC0) == 0x80;
}

// Bytes of the longest prefix of `text` that is valid UTF-8 (RFC 3629: no surrogates, no overlong
// forms, at most U+10FFFF).
size_t valid_utf8_prefix(std::string_view text);

// Bytes of an incomplete character at the end of `text`: 0 to 3.
size_t unfinished_utf8_suffix(std::string_view text);

// Replaces invalid UTF-8 by U+FFFD: one for each truncated character and one for each other invalid
// byte (The Unicode Standard, table 3-8).
std::string replace_invalid_utf8(std::string_view text);

// `text` for a terminal or a log: replace_invalid_utf8, then U+FFFD for each control character
// except line ends and tabs. Carriage returns are dropped.
std::string printable_utf8(std::string_view text);

// Bytes of the white-space character (Unicode's White_Space) at the start or end of `text`; 0 if
// there is none.
size_t space_prefix(std::string_view text);
size_t space_suffix(std::string_view text);

// Splits `text` into maximal valid and invalid parts; calls valid(part) or invalid(part) for each.
template <class Valid, class Invalid>
void split_utf8(std::string_view text, const Valid& valid, const Invalid& invalid) {
  while (!text.empty()) {
    const size_t good = valid_utf8_prefix(text);
    if (good > 0) valid(text.substr(0, good));
    text.remove_prefix(good);
    size_t bad = 0;
    while (bad < text.size() && valid_utf8_prefix(text.substr(bad, 4)) == 0) ++bad;
    if (bad > 0) invalid(text.substr(0, bad));
    text.remove_prefix(bad);
  }
}

}  // namespace quern
