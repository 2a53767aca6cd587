// U+2581, which SentencePiece writes for a space in its pieces.
#pragma once

#include <string>
#include <string_view>

namespace quern {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

std::string marks_for_spaces(std::string_view text);
std::string spaces_for_marks(std::string_view piece);

// Words end behind a line feed, and before spaces and marks that follow something else. Where no
// token of a vocabulary spans such a border, text may be encoded word by word.
bool spans_words(std::string_view token);
// Bytes of the first word of `text`, which is not empty.
size_t word_size(std::string_view text);

}  // namespace quern
