// Where text is UTF-8 and where it is not.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quern {

// Bytes of the longest prefix of `text` that is valid UTF-8 (RFC 3629: no surrogates, no overlong
// forms, at most U+10FFFF).
size_t valid_utf8_prefix(std::string_view text);

// Bytes at the end of `text` that are the beginning of a character whose rest has not come: 0 to 3.
size_t unfinished_utf8_suffix(std::string_view text);

// `text` with U+FFFD for what is no UTF-8: one for each beginning of a character that does not go
// on, and one for each other byte (The Unicode Standard, table 3-8).
std::string replace_invalid_utf8(std::string_view text);

// `text` for a terminal or a log: replace_invalid_utf8, then U+FFFD for each control character but
// line ends and tabs. Carriage returns are dropped.
std::string printable_utf8(std::string_view text);

// Bytes of the white-space character (Unicode's White_Space) that `text` begins or ends with; 0:
// none.
size_t space_prefix(std::string_view text);
size_t space_suffix(std::string_view text);

// Calls valid(part) and invalid(part) in turn for the longest parts that are UTF-8 and are not.
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
