// Where text is UTF-8 and where it is not.
#pragma once

#include <cstddef>
#include <string_view>

namespace quern {

// Bytes of the longest prefix of `text` that is valid UTF-8 (RFC 3629: no surrogates, no overlong
// forms, at most U+10FFFF).
size_t valid_utf8_prefix(std::string_view text);

// Bytes at the end of `text` that are the beginning of a character whose rest has not come: 0 to 3.
size_t unfinished_utf8_suffix(std::string_view text);

}  // namespace quern
